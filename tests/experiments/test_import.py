import subprocess
import sys


def test_importing_the_tools_loads_neither_torch_nor_matplotlib() -> None:
    """They are imported by the functions that need them: `hybridrl --help` stays quick."""
    modules = (
        "commit",
        "figures",
        "machine",
        "measurement",
        "palette",
        "records",
        "result",
        "scale",
        "sources",
    )
    imports = "\n".join(f"import hybridrl.experiments.{module}" for module in modules)
    code = f"{imports}\nimport sys\nprint([m for m in ('torch', 'matplotlib', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
