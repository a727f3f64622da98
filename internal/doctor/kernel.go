package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kernel is the check of the kernel's version.
var Kernel = Check{"kernel", func(h *Host) Finding {
	release, err := h.read("/proc/sys/kernel/osrelease")
	if err != nil {
		return unknown(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return note("%s: not a version that is understood", release)
	}
	older := func(a, b int) bool { return major < a || major == a && minor < b }
	const newer = "apt-get install --only-upgrade linux-image-$(dpkg --print-architecture) && reboot"
	switch {
	case older(3, 17):
		return failed("Linux %s has no memfd_create (3.17)", release).costs("there are no volumes in memory").mend(newer)
	case older(5, 0):
		return warning("Linux %s has no MSG_ZEROCOPY (4.14), TCP_INQ and UDP_SEGMENT (4.18) or UDP_GRO (5.0)", release).
			costs("large answers are copied, and RoCE takes a system call a packet").mend(newer)
	case older(5, 14):
		return note("Linux %s has no MADV_POPULATE_READ (5.14)", release).
			costs("pages of volumes come in one fault at a time").mend(newer)
	}
	return ok("Linux %s", release)
}}

// HugePages is the check of transparent huge pages of shared memory, which volumes with
// huge_pages ask for; wanted: there are some.
func HugePages(wanted bool) Check {
	return Check{"huge pages", func(h *Host) Finding {
		const file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
		s, err := h.read(file)
		if err != nil && !missing(err) {
			return unknown(err)
		}
		chosen := "not in this kernel"
		if _, rest, found := strings.Cut(s, "["); found {
			chosen, _, _ = strings.Cut(rest, "]")
		}
		switch {
		case slices.Contains([]string{"advise", "always", "within_size", "force"}, chosen):
			return ok("for shared memory: %s", chosen)
		case !wanted:
			return ok("for shared memory: %s; no volume asks for them", chosen)
		}
		return warning("for shared memory: %s", chosen).
			costs("volumes with huge_pages have pages of 4 KiB, and more misses of the TLB").
			mend("echo advise > %s", file)
	}}
}

// Module is the check of a module of the kernel: name, what device or folder shows that it
// is there, and what is not to be had without it.
func Module(name, shown string, without Level, cost string) Check {
	return Check{"module " + name, func(h *Host) Finding {
		if h.exists("/sys/module/"+name) || shown != "" && h.exists(shown) {
			return ok("loaded")
		}
		f := Finding{Level: without}.costs("%s", cost)
		if !h.module(name) {
			f.Found = "the running kernel does not have it"
			return f.mend("grep -l %s.ko /lib/modules/*/modules.dep   # which installed kernels have it", name)
		}
		f.Found = "not loaded"
		return f.mend("modprobe %s && echo %s > /etc/modules-load.d/%s.conf", name, name, name)
	}}
}

// module reports whether the running kernel can have a module.
func (h *Host) module(name string) bool {
	release, err := h.read("/proc/sys/kernel/osrelease")
	if err != nil {
		return false
	}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		s, err := h.read("/lib/modules/" + release + "/" + list)
		if err != nil {
			continue
		}
		for line := range strings.Lines(s) {
			file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			base, _, _ := strings.Cut(file[strings.LastIndexByte(file, '/')+1:], ".ko")
			if strings.ReplaceAll(base, "-", "_") == name {
				return true
			}
		}
	}
	return false
}

// Rxe is the check that the kernel's own RoCE is not in the way of ours, which has the same
// port of UDP; wanted: there are portals for RoCE.
func Rxe(wanted bool) Check {
	return Check{"module rdma_rxe", func(h *Host) Finding {
		switch {
		case !h.exists("/sys/module/rdma_rxe"):
			return ok("not loaded; UDP port 4791 is ours to take")
		case !wanted:
			return note("loaded").costs("no process can have UDP port 4791 of the first network namespace, for RoCE")
		}
		return failed("loaded").costs("it has UDP port 4791 on all addresses of the first network namespace: portals for RoCE cannot be opened").
			mend("modprobe -r rdma_rxe")
	}}
}

// Clock is the check that something keeps the clock right.
var Clock = Check{"clock", func(h *Host) Finding {
	ask := h.Unsynchronised
	if ask == nil {
		ask = kernelClock
	}
	free, err := ask()
	switch {
	case err != nil:
		return unknown(err)
	case free:
		return warning("not synchronised").
			costs("times in logs and metrics do not agree with those of other machines, and certificates may look expired").
			mend("timedatectl set-ntp true")
	}
	return ok("synchronised")
}}

// Capability is the check of a capability, by its number and name; as is a command line that
// has it.
func Capability(number int, name string, without Level, cost, as string) Check {
	return Check{name, func(h *Host) Finding {
		has, err := h.capable(number)
		switch {
		case err != nil:
			return unknown(err)
		case has:
			return ok("there")
		}
		f := Finding{Level: without, Found: "the process does not have it"}
		return f.costs("%s", cost).mend("%s", as)
	}}
}

// Capabilities that are asked for (capability.h).
const (
	CapSysAdmin = 21
	capIPCLock  = 14
)

// capable reports whether the process has a capability.
func (h *Host) capable(number int) (bool, error) {
	s, err := h.read(h.process("status"))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(s) {
		if v, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return set>>number&1 != 0, err
		}
	}
	return false, fmt.Errorf("%s has no CapEff", h.process("status"))
}
