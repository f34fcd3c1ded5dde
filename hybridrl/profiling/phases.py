"""The named phases of a training iteration: one vocabulary for timers, tables, figures and text."""

COLLECT = "collect"
ACT = "act"
ENV = "env"
STORE = "store"
LEARN = "learn"
RETURNS = "returns"
UPDATE = "update"
TRANSFER = "transfer"
PUBLISH = "publish"
WAIT = "wait"
OTHER = "other"

DESCRIPTIONS: dict[str, str] = {
    COLLECT: "gathering experience: acting, stepping the environments, storing what came back",
    ACT: "the acting policy: observations in, actions out",
    ENV: "stepping the environments",
    STORE: "writing transitions into the rollout or the replay buffer",
    LEARN: "turning gathered experience into new parameters",
    RETURNS: "returns and advantages, before the first gradient",
    UPDATE: "losses, gradients and optimiser steps",
    TRANSFER: "moving data from one device to another",
    PUBLISH: "handing new parameters to the acting policy",
    WAIT: "nothing to do: waiting for data, for parameters, or for a free slot",
    OTHER: "time outside every named phase, the timer's own overhead included",
}
