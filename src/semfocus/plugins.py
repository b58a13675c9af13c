"""Modules of a user's own, which register tasks, mechanisms, normalisers, objectives or executors when imported.

    semfocus compare my_task --plugin my_module            a module that Python finds, here or installed
    semfocus compare my_task --plugin lib/my_module.py     a file
    SEMFOCUS_PLUGINS=my_module semfocus run my_study.toml  the same for every command

    [project.entry-points."semfocus.plugins"]              an installed package needs no option
    mine = "my_package.semfocus_plugin"

Only the person at the command line names plugins; a configuration or a run directory never does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from semfocus.errors import UsageError
from semfocus.registry import Registry

VARIABLE, GROUP = "SEMFOCUS_PLUGINS", "semfocus.plugins"


def load_plugins(names: Iterable[str] = ()) -> None:
    """Import the plugins of installed packages, those of SEMFOCUS_PLUGINS, and these."""
    for point in entry_points(group=GROUP):
        _import(point.value.partition(":")[0], f"{point.name} (entry point {point.value})")
    for name in [*os.environ.get(VARIABLE, "").split(","), *names]:
        if name.strip():
            load_plugin(name.strip())


def load_plugin(name: str) -> None:
    """Import one plugin by its module name, or by the path of its file."""
    path = Path(name)
    is_file = path.suffix == ".py" or os.sep in name
    if is_file and not os.path.isfile(path):
        raise UsageError(f"plugin {name!r} is not a file; give the path of a Python file, or the name of a module")
    module, folder = (path.stem, path.parent) if is_file else (name, Path.cwd())
    if str(folder.absolute()) not in sys.path:
        sys.path.insert(0, str(folder.absolute()))
    _import(module, name)
    home = getattr(sys.modules[module], "__file__", None)
    if is_file and (home is None or not path.samefile(home)):
        raise UsageError(
            f"plugin {name!r}: another module is called {module!r} ({home or 'built in'}); rename the file"
        )


def _import(module: str, name: str) -> None:
    """Import a module; whatever it raises becomes an error that names the plugin."""
    try:
        import_module(module)
    except UsageError as error:
        raise UsageError(f"plugin {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0]):
            where = f"it must be a module in {Path.cwd()} or an installed one, or the path of a .py file"
            raise UsageError(f"plugin {name!r} cannot be found: {error}; {where}") from error
        raise UsageError(f"plugin {name!r} raises {type(error).__name__} on import: {error}; mend it first") from error


def plugin_modules() -> list[str]:
    """The modules outside of semfocus that have registered something: what a fresh process must import as well.

    The main module is not among them, since multiprocessing imports it by itself, nor is code that no import finds.
    """
    homes = {home for registry in Registry.every for home in registry.origins()}
    homes = {home for home in homes if home.split(".")[0] not in ("semfocus", "__main__", "__mp_main__")}
    return sorted(home for home in homes if getattr(sys.modules.get(home), "__spec__", None) is not None)
