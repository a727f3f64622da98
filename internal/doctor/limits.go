package doctor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// unlimited is a limit that there is none of.
const unlimited = math.MaxInt64

// limit reads a row of /proc/PID/limits; hard is what the process may raise it to.
func (h *Host) limit(row string) (soft, hard int64, err error) {
	file := h.process("limits")
	s, err := h.read(file)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(s) {
		rest, found := strings.CutPrefix(line, row)
		if !found {
			continue
		}
		f := strings.Fields(rest)
		if len(f) < 2 {
			break
		}
		if soft, err = parseLimit(f[0]); err == nil {
			hard, err = parseLimit(f[1])
		}
		return soft, hard, err
	}
	return 0, 0, fmt.Errorf("%s has no %q", file, row)
}

func parseLimit(s string) (int64, error) {
	if s == "unlimited" || s == "max" {
		return unlimited, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

// dropIn is the command that gives a limit to a service.
func dropIn(unit, setting string) string {
	dir := "/etc/systemd/system/" + unit + ".service.d"
	name, _, _ := strings.Cut(setting, "=")
	return fmt.Sprintf("mkdir -p %s && printf '[Service]\\n%s\\n' > %s/%s.conf && systemctl daemon-reload", dir, setting, dir, strings.ToLower(name))
}

// zerocopyPinned is what MSG_ZEROCOPY of a busy process pins, more or less, bytes.
const zerocopyPinned = 16 << 20

// Memlock is the check of the memory that the process may pin, of a unit; wanted are the
// bytes of volumes that are kept in memory.
func Memlock(unit string, wanted int64) Check {
	return Check{"locked memory", func(h *Host) Finding {
		soft, hard, err := h.limit("Max locked memory")
		if err != nil {
			return unknown(err)
		}
		free, err := h.capable(capIPCLock)
		mend := dropIn(unit, "LimitMEMLOCK=infinity")
		switch {
		case soft == unlimited || err == nil && free:
			return ok("no limit")
		case wanted > soft:
			return failed("at most %s, and volumes with lock: true have %s", size(soft), size(wanted)).
				costs("those volumes are not served").mend("%s", mend)
		case hard < zerocopyPinned:
			return note("at most %s", size(soft)).
				costs("large answers that MSG_ZEROCOPY would send are copied while so much is pinned").mend("%s", mend)
		}
		return ok("at most %s", size(soft))
	}}
}

// sparedFiles are those of a process beside its connections.
const sparedFiles = 64

// OpenFiles is the check of the number of descriptors; wanted are those for connections and
// volumes.
func OpenFiles(unit string, wanted int) Check {
	return Check{"open files", func(h *Host) Finding {
		_, hard, err := h.limit("Max open files")
		if err != nil {
			return unknown(err)
		}
		if int64(wanted)+sparedFiles > hard {
			return warning("at most %d, and %d connections and volumes are allowed", hard, wanted).
				costs("the limits of sessions and pending logins are cut down to what fits").
				mend("%s", dropIn(unit, "LimitNOFILE=65536"))
		}
		return ok("at most %d", hard)
	}}
}

// group is a limit of a control group.
type group struct {
	limit int64
	path  string // of the group, below /sys/fs/cgroup
}

// controlGroup finds a setting of the group of the process, or of one above it: the least.
func (h *Host) controlGroup(file string, parse func(string) (int64, error)) (group, error) {
	least := group{limit: unlimited}
	s, err := h.read(h.process("cgroup"))
	if err != nil {
		return least, err
	}
	controller, _, _ := strings.Cut(file, ".")
	for line := range strings.Lines(s) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		path := f[2]
		if slices.Contains(strings.Split(f[1], ","), controller) && path != "/" {
			return least, fmt.Errorf("control group %s of version 1 has the limits", path)
		}
		for f[0] == "0" && strings.HasPrefix(path, "/") {
			if v, err := h.read("/sys/fs/cgroup" + path + "/" + file); err == nil {
				n, err := parse(v)
				if err != nil {
					return least, fmt.Errorf("/sys/fs/cgroup%s/%s: %w", path, file, err)
				}
				if n < least.limit {
					least = group{n, path}
				}
			}
			path = path[:strings.LastIndexByte(path, '/')]
		}
	}
	return least, nil
}

// set is the command that gives the group another limit: what systemd calls it, and the
// file with what to write there.
func (g *group) set(property, file, value string) string {
	unit := g.path[strings.LastIndexByte(g.path, '/')+1:]
	for _, kind := range []string{".service", ".scope", ".slice"} {
		if strings.HasSuffix(unit, kind) {
			return "systemctl set-property " + unit + " " + property
		}
	}
	return "echo " + value + " > /sys/fs/cgroup" + g.path + "/" + file
}

// GroupMemory is the check of the control group's memory; wanted are bytes of staging memory and of
// volumes in memory.
func GroupMemory(wanted int64) Check {
	return Check{"cgroup memory", func(h *Host) Finding {
		g, err := h.controlGroup("memory.max", parseLimit)
		switch {
		case err != nil:
			return unknown(err)
		case g.limit < wanted:
			return failed("at most %s, and volumes in memory and staging take up to %s", size(g.limit), size(wanted)).
				costs("the kernel ends the process when they are full").
				mend("%s", g.set("MemoryMax=infinity", "memory.max", "max"))
		case g.limit == unlimited:
			return ok("no limit")
		}
		return ok("at most %s", size(g.limit))
	}}
}

// GroupCPU is the check of the control group's share of the processors.
var GroupCPU = Check{"cgroup CPU", func(h *Host) Finding {
	g, err := h.controlGroup("cpu.max", quota)
	switch {
	case err != nil:
		return unknown(err)
	case g.limit < 100:
		return warning("at most %d%% of one processor", g.limit).
			costs("commands wait for the next period, up to 100 ms, once it is used up").
			mend("%s", g.set("CPUQuota=", "cpu.max", "max"))
	case g.limit == unlimited:
		return ok("no limit")
	}
	return ok("at most %d%% of one processor", g.limit)
}}

// fewTasks is where the threads that wait for storage may find no room.
const fewTasks = 256

// GroupTasks is the check of the number of threads.
var GroupTasks = Check{"cgroup tasks", func(h *Host) Finding {
	g, err := h.controlGroup("pids.max", parseLimit)
	switch {
	case err != nil:
		return unknown(err)
	case g.limit < fewTasks:
		return warning("at most %d threads", g.limit).
			costs("a process that cannot make a thread when its others wait for storage ends").
			mend("%s", g.set("TasksMax=4096", "pids.max", "max"))
	case g.limit == unlimited:
		return ok("no limit")
	}
	return ok("at most %d threads", g.limit)
}}

// quota reads cpu.max, "QUOTA PERIOD" in microseconds, as percent of a processor.
func quota(s string) (int64, error) {
	f := strings.Fields(s)
	if len(f) != 2 {
		return 0, fmt.Errorf("%q is not a quota and a period", s)
	}
	q, err := parseLimit(f[0])
	if err != nil || q == unlimited {
		return q, err
	}
	period, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil || period <= 0 || q > math.MaxInt64/100 {
		return 0, fmt.Errorf("%q is not a quota and a period", s)
	}
	return q * 100 / period, nil
}

// size is a number of bytes for people.
func size(n int64) string {
	if n == unlimited {
		return "no limit"
	}
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n >= 1024 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	if i == 0 && n >= 10<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
