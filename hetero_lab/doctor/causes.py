"""From what a machine shows to what it lacks: one line for each cause, with its way out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from typing import NamedTuple

from hetero_lab.doctor.read_machine import DeviceFile, Machine
from hetero_lab.errors import names_at_hand
from hetero_lab.tables import bytes_text
from hetero_lab.terminal import one_line

OK, WARNING, MISSING = "ok", "warning", "missing"
ABSENT = "absent"  # as on a machine that has no such device
_LITTLE = 2_000_000_000  # bytes; a compile of a small model takes some hundred MB
_BUSY = 0.75  # of the processors
_LOG_IN = 'Run sudo usermod -aG {} "$USER" and log in again; in a container: --group-add.'


class Check(NamedTuple):
    """One thing that was looked at: its area, its state, a sentence, and the way out."""

    area: str
    state: str
    what: str
    way_out: str = ""


def findings(machine: Machine) -> list[Check]:
    """Return what works, what disturbs and what is missing on a machine."""
    rules = (_openvino, _cpu, _gpu, _npu, _npu_compiler, _state, _packages)
    return [check for rule in rules for check in rule(machine)]


def _missing(area: str, what: str, way_out: str) -> Check:
    return Check(area, MISSING, what, way_out)


def _warning(area: str, what: str, way_out: str) -> Check:
    return Check(area, WARNING, what, way_out)


def _openvino(m: Machine) -> Iterator[Check]:
    package = m.packages["openvino"]
    if not package.version:
        yield _missing(
            "OpenVINO",
            "OpenVINO is not installed for this Python.",
            f"pip install 'openvino>={package.needed}'",
        )
    elif m.crash:
        yield _missing(
            "OpenVINO",
            f"OpenVINO {package.version} fails: {one_line(m.crash)}.",
            "pip install --force-reinstall openvino; then look at drivers.",
        )
    elif _is_old(package.version, package.needed):
        yield _warning(
            "OpenVINO",
            f"OpenVINO {package.version} is older than {package.needed}.",
            "pip install -U openvino",
        )
    else:
        yield Check("OpenVINO", OK, f"OpenVINO {package.version} is installed.")


def _is_old(version: str, needed: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(n) for n in text.replace("-", ".").split(".")[:3] if n.isdigit()]

    return numbers(version) < numbers(needed)


def _seen(m: Machine, kind: str) -> Iterator[Check]:
    names = [f"{d} ({n})" if n else d for d, n in m.devices.items() if d.split(".")[0] == kind]
    if names:
        by = [p.rsplit("/")[-1] for p in m.loaded if fnmatch(p.lower(), f"*{kind.lower()}*plugin*")]
        answers = f"; {', '.join(by)} answers" if by else ""
        yield Check(kind, OK, f"OpenVINO sees {', '.join(names)}{answers}.")


def _lacks_plugin(m: Machine, kind: str) -> bool:
    pattern = f"*{kind.lower()}*plugin*"
    return m.libraries is not None and not any(fnmatch(f.lower(), pattern) for f in m.libraries)


def _no_plugin(kind: str) -> Check:
    return _missing(
        kind,
        f"The {kind} plugin's library is not beside the runtime.",
        "pip install --force-reinstall openvino",
    )


def _cpu(m: Machine) -> Iterator[Check]:
    if m.packages["openvino"].version and not m.crash:
        reason = one_line(m.reasons.get("CPU", "no reason is given"))
        if seen := list(_seen(m, "CPU")):
            yield from seen
        elif _lacks_plugin(m, "CPU"):
            yield _no_plugin("CPU")
        else:
            yield _missing(
                "CPU", f"OpenVINO sees no CPU: {reason}.", "pip install --force-reinstall openvino"
            )


def _gpu(m: Machine) -> Iterator[Check]:
    seen, files = list(_seen(m, "GPU")), m.gpu_files
    usable = [driver for driver in m.opencl_drivers if not driver.problem]
    broken = next((driver for driver in m.opencl_drivers if driver.problem), None)
    yield from seen
    if len(usable) > 1:
        names = [driver.file.rsplit("/")[-1] for driver in usable]
        yield _warning(
            "OpenCL",
            f"{len(usable)} OpenCL drivers are registered: {', '.join(names)}.",
            f"Choose one: export OCL_ICD_VENDORS={names[0]}",
        )
    if seen:
        return
    if _lacks_plugin(m, "GPU"):
        yield _no_plugin("GPU")
    elif not files:
        yield _no_file(m, "GPU", "/dev/dri/renderD*", "--device /dev/dri", ("i915", "xe"))
    elif not any(file.may_open for file in files):
        yield _closed("GPU", files[0])
    elif not m.opencl_loader:
        yield _missing(
            "GPU",
            "The OpenCL loader libOpenCL.so.1 is missing.",
            "sudo apt install ocl-icd-libopencl1",
        )
    elif broken and not usable:
        what = f"cannot be read: {broken.library or broken.file}"
        if broken.problem == "missing":
            what = f"names a library that is missing: {broken.library or 'none'}"
        yield _missing(
            "GPU",
            f"The OpenCL driver {broken.file} {what}.",
            "Install the driver again, for Intel: sudo apt install --reinstall intel-opencl-icd",
        )
    elif not usable:
        variable = f"OCL_ICD_VENDORS={m.icd_vendors} names none" if m.icd_vendors else ""
        yield _missing(
            "GPU",
            f"The OpenCL loader has no driver: {variable or 'no file in /etc/OpenCL/vendors'}.",
            "unset OCL_ICD_VENDORS" if variable else "For Intel: sudo apt install intel-opencl-icd",
        )
    elif len(usable) == 1 and m.packages["openvino"].version and not m.crash:
        yield _silent(m, "GPU", "clinfo -l shows what the driver sees; update the driver.")


def _npu(m: Machine) -> Iterator[Check]:
    if seen := list(_seen(m, "NPU")):
        yield from seen
    elif _lacks_plugin(m, "NPU"):
        yield _no_plugin("NPU")
    elif not m.npu_files:
        yield _no_file(m, "NPU", "/dev/accel/accel*", "--device /dev/accel", ("intel_vpu",))
    elif not any(file.may_open for file in m.npu_files):
        yield _closed("NPU", m.npu_files[0])
    else:
        parts = {
            "libze_loader": "The Level Zero loader is missing",
            "libze_intel_npu": "The Level Zero driver libze_intel_npu is missing",
        }
        missing = next((what for name, what in parts.items() if name not in m.level_zero), "")
        if not missing and not m.npu_firmware and not m.is_container:
            missing = "The firmware of the NPU is missing in /lib/firmware/intel/vpu"
        if missing:
            yield _missing(
                "NPU", f"{missing}.", "Install one release of github.com/intel/linux-npu-driver."
            )
        elif m.packages["openvino"].version and not m.crash:
            yield _silent(m, "NPU", "Update driver and firmware together, and see dmesg.")


def _npu_compiler(m: Machine) -> Iterator[Check]:
    is_asked = m.libraries is not None and not _lacks_plugin(m, "NPU")
    if is_asked and not m.npu_compiler and not list(_seen(m, "NPU")):
        yield Check(
            "NPU compiler",
            ABSENT,
            "The NPU plugin finds no compiler; the Linux wheel lacks it (openvino#36374).",
            "pip install ai-edge-litert-sdk-intel brings it "
            "(untried here); then NPU_PLATFORM compiles without the device.",
        )


def _no_file(m: Machine, kind: str, file: str, option: str, modules: tuple[str, ...]) -> Check:
    loaded = [name for name in modules if name in m.modules]
    if m.is_container:
        return Check(
            kind,
            ABSENT,
            f"This container has no device file of the {kind}, {file}.",
            f"If the host has one: docker run {option}",
        )
    kernel = f"{', '.join(loaded)} is loaded" if loaded else f"{' or '.join(modules)} is not loaded"
    return Check(
        kind,
        ABSENT,
        f"The kernel shows no {kind}: no {file}, and {kernel}.",
        "If this machine has one, a newer kernel may know it.",
    )


def _closed(kind: str, file: DeviceFile) -> Check:
    return _missing(
        kind, f"You may not open {file.path} of the group {file.group}.", _LOG_IN.format(file.group)
    )


def _silent(m: Machine, kind: str, way_out: str) -> Check:
    reason = one_line(m.reasons.get(kind, "")) or "the plugin finds no device"
    return _missing(
        kind,
        f"File, loader and driver of the {kind} are there, but OpenVINO "
        f"sees none: {reason.rstrip('.')}.",
        way_out,
    )


def _state(m: Machine) -> Iterator[Check]:
    if m.free_bytes is not None:
        is_little = m.free_bytes < _LITTLE
        yield Check(
            "memory",
            WARNING if is_little else OK,
            f"{bytes_text(m.free_bytes)} of {bytes_text(m.memory_bytes)} memory are free.",
            "Close other programs, or raise the container's limit." * is_little,
        )
    if m.load is not None:
        is_busy = m.load > _BUSY * m.n_cpus
        yield Check(
            "load",
            WARNING if is_busy else OK,
            f"The load is {m.load:g} on {m.n_cpus} processors.",
            "Close what runs beside measurements." * is_busy,
        )
    if m.governor:
        # These drivers change the clock under powersave as well.
        is_slow = m.governor == "powersave" and m.clock_driver not in (
            "intel_pstate",
            "amd-pstate-epp",
        )
        yield Check(
            "clock",
            WARNING if is_slow else OK,
            f"The clock governor is {m.governor}.",
            "sudo cpupower frequency-set -g performance" * is_slow,
        )
    if m.unreadable:
        yield _warning(
            "doctor",
            f"The doctor may not read {names_at_hand(m.unreadable, 3)}.",
            "Run it as a user who may.",
        )


def _packages(m: Machine) -> Iterator[Check]:
    fine: list[str] = []
    for name, p in m.packages.items():
        if name == "openvino":
            continue
        if not p.version:
            yield _missing("widgets", f"{name} is not installed.", f"pip install {name}")
        elif p.problem:
            yield _warning(
                "widgets",
                f"{name} {p.version} does not work: {one_line(p.problem)}.",
                f"pip install --force-reinstall {name}",
            )
        elif _is_old(p.version, p.needed):
            yield _warning(
                "widgets", f"{name} {p.version} is older than {p.needed}.", f"pip install -U {name}"
            )
        else:
            fine.append(f"{name} {p.version}")
    if fine:
        yield Check("widgets", OK, f"{', '.join(fine)} work; this is {m.front_end}.")
