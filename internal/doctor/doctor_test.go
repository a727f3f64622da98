package doctor_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"softiser/internal/doctor"
)

// healthy is a host with nothing to mend.
var healthy = map[string]string{
	"proc/sys/kernel/osrelease":                          "6.12.1-amd64\n",
	"proc/self/limits":                                   "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 1048576              files     \nMax locked memory         67108864             67108864             bytes     \n",
	"proc/self/status":                                   "Name:\tx\nCapEff:\t000001ffffffbfff\n",
	"proc/self/cgroup":                                   "0::/system.slice/iser-target.service\n",
	"proc/self/mountinfo":                                "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n",
	"sys/fs/cgroup/system.slice/memory.max":              "max\n",
	"sys/fs/cgroup/system.slice/cpu.max":                 "max 100000\n",
	"sys/fs/cgroup/system.slice/pids.max":                "9000\n",
	"sys/kernel/mm/transparent_hugepage/shmem_enabled":   "always within_size [advise] never deny force\n",
	"proc/sys/net/ipv4/tcp_congestion_control":           "cubic\n",
	"proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic\n",
	"proc/sys/net/core/somaxconn":                        "4096\n",
	"proc/sys/net/core/rmem_max":                         "16777216\n",
	"proc/sys/net/ipv4/tcp_rmem":                         "4096\t131072\t6291456\n",
	"proc/sys/net/ipv4/tcp_wmem":                         "4096\t16384\t4194304\n",
	"proc/net/tcp":                                       heading,
	"proc/net/tcp6":                                      heading,
	"proc/net/udp":                                       heading,
	"sys/module/nbd/refcnt":                              "0\n",
	"lib/modules/6.12.1-amd64/modules.dep":               "kernel/drivers/block/nbd.ko.xz:\nkernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/x.ko\n",
	"lib/modules/6.12.1-amd64/modules.builtin":           "kernel/drivers/block/ublk-drv.ko\n",
}

const (
	heading  = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	loopback = "   0: 0100007F:0CBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 x 100 0 0 10 0\n"
	wildcard = "   0: 00000000000000000000000000000000:0CBC 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 1\n"
	client   = "   0: 0100007F:0CBC 0100007F:9999 01 0:0 0:0 0 0 0 1\n"
	datagram = "   0: 00000000:12B7 00000000:0000 07 0:0 0:0 0 0 0 1\n"
)

// host makes a host of the healthy one; a file whose text is "-" is not there.
func host(changed map[string]string) *doctor.Host {
	root := fstest.MapFS{}
	files := maps.Clone(healthy)
	maps.Copy(files, changed)
	for name, text := range files {
		if text != "-" {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return &doctor.Host{Root: root, Unsynchronised: func() (bool, error) { return false, nil }}
}

// Each check is shown a host on which it finds nothing, and each way in which one can be
// otherwise.
func TestChecks(t *testing.T) {
	const unit = "iser-target"
	addr := netip.MustParseAddrPort
	type change struct {
		files map[string]string
		host  func(*doctor.Host)
		level doctor.Level
		mend  string // part of the command
	}
	limits := func(s string) map[string]string { return map[string]string{"proc/self/limits": s} }
	one := func(name, text string) map[string]string { return map[string]string{name: text} }
	state := t.TempDir()
	file := filepath.Join(state, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	on := func(kind string) map[string]string {
		return one("proc/self/mountinfo", healthy["proc/self/mountinfo"]+"30 22 0:9 / "+state+" rw - "+kind+" none rw\n")
	}
	for _, tt := range []struct {
		check   doctor.Check
		changes []change
	}{
		{doctor.Kernel, []change{
			{files: one("proc/sys/kernel/osrelease", "3.10.0"), level: doctor.Error, mend: "linux-image"},
			{files: one("proc/sys/kernel/osrelease", "4.19.0-26-amd64"), level: doctor.Warning, mend: "linux-image"},
			{files: one("proc/sys/kernel/osrelease", "5.10"), level: doctor.Note, mend: "linux-image"},
			{files: one("proc/sys/kernel/osrelease", "unheard"), level: doctor.Note},
			{files: one("proc/sys/kernel/osrelease", "-"), level: doctor.Note},
		}},
		{doctor.HugePages(true), []change{
			{files: one("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]"), level: doctor.Warning, mend: "echo advise >"},
			{files: one("sys/kernel/mm/transparent_hugepage/shmem_enabled", "-"), level: doctor.Warning, mend: "echo advise >"},
		}},
		{doctor.HugePages(false), []change{
			{files: one("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]"), level: doctor.OK},
		}},
		{doctor.Module("nbd", "/dev/nbd0", doctor.Warning, "no device"), []change{
			{files: one("sys/module/nbd/refcnt", "-"), level: doctor.Warning, mend: "modprobe nbd"},
			{files: map[string]string{"sys/module/nbd/refcnt": "-", "dev/nbd0": ""}, level: doctor.OK},
			{files: map[string]string{"sys/module/nbd/refcnt": "-", "lib/modules/6.12.1-amd64/modules.dep": "-"}, level: doctor.Warning, mend: "grep -l nbd.ko"},
		}},
		{doctor.Rxe(true), []change{{files: one("sys/module/rdma_rxe/refcnt", "1"), level: doctor.Error, mend: "modprobe -r rdma_rxe"}}},
		{doctor.Rxe(false), []change{{files: one("sys/module/rdma_rxe/refcnt", "1"), level: doctor.Note}}},
		{doctor.Clock, []change{
			{host: func(h *doctor.Host) { h.Unsynchronised = func() (bool, error) { return true, nil } }, level: doctor.Warning, mend: "set-ntp"},
			{host: func(h *doctor.Host) {
				h.Unsynchronised = func() (bool, error) { return false, errors.New("not permitted") }
			}, level: doctor.Note},
		}},
		{doctor.Capability(doctor.CapSysAdmin, "CAP_SYS_ADMIN", doctor.Warning, "no device", "sudo me"), []change{
			{files: one("proc/self/status", "CapEff:\t0000000000000000\n"), level: doctor.Warning, mend: "sudo me"},
			{files: one("proc/self/status", "Name:\tx\n"), level: doctor.Note},
		}},
		{doctor.Memlock(unit, 0), []change{
			{files: limits("Max locked memory         8388608 8388608 bytes\n"), level: doctor.Note, mend: "LimitMEMLOCK"},
			{files: limits("Max locked memory         unlimited unlimited bytes\n"), level: doctor.OK},
			{files: map[string]string{"proc/self/limits": "Max locked memory 0 0 bytes\n", "proc/self/status": "CapEff:\t0000000000004000\n"}, level: doctor.OK},
			{files: limits("-"), level: doctor.Note},
			{files: limits("nothing\n"), level: doctor.Note},
			{files: limits("Max locked memory a b\n"), level: doctor.Note},
			{files: limits("Max locked memory 1\n"), level: doctor.Note},
		}},
		{doctor.Memlock(unit, 64<<20), []change{
			{files: limits("Max locked memory         8388608 unlimited bytes\n"), level: doctor.Error, mend: "iser-target.service.d/limitmemlock.conf"},
		}},
		{doctor.OpenFiles(unit, 1000), []change{
			{files: limits("Max open files            1024 1024 files\n"), level: doctor.Warning, mend: "LimitNOFILE"},
			{files: limits("-"), level: doctor.Note},
		}},
		{doctor.GroupMemory(1 << 30), []change{
			{files: one("sys/fs/cgroup/system.slice/memory.max", "1073741823"), level: doctor.Error, mend: "set-property system.slice MemoryMax=infinity"},
			{files: map[string]string{"proc/self/cgroup": "0::/lxc/1", "sys/fs/cgroup/lxc/memory.max": "1"}, level: doctor.Error, mend: "echo max > /sys/fs/cgroup/lxc/memory.max"},
			{files: one("sys/fs/cgroup/system.slice/iser-target.service/memory.max", "536870912"), level: doctor.Error, mend: "set-property iser-target.service MemoryMax"},
			{files: one("sys/fs/cgroup/system.slice/memory.max", "1073741824"), level: doctor.OK},
			{files: one("sys/fs/cgroup/system.slice/memory.max", "x"), level: doctor.Note},
			{files: one("proc/self/cgroup", "4:memory:/docker/1\n0::/\n"), level: doctor.Note},
			{files: one("proc/self/cgroup", "4:memory:/\n0::/\nx\n"), level: doctor.OK},
			{files: one("proc/self/cgroup", "-"), level: doctor.Note},
		}},
		{doctor.GroupCPU, []change{
			{files: one("sys/fs/cgroup/system.slice/cpu.max", "50000 100000"), level: doctor.Warning, mend: "CPUQuota="},
			{files: one("sys/fs/cgroup/system.slice/cpu.max", "150000 100000"), level: doctor.OK},
			{files: one("sys/fs/cgroup/system.slice/cpu.max", "1"), level: doctor.Note},
			{files: one("sys/fs/cgroup/system.slice/cpu.max", "1 0"), level: doctor.Note},
		}},
		{doctor.GroupTasks, []change{
			{files: one("sys/fs/cgroup/system.slice/pids.max", "64"), level: doctor.Warning, mend: "TasksMax"},
			{files: one("sys/fs/cgroup/system.slice/pids.max", "max"), level: doctor.OK},
			{files: one("sys/fs/cgroup/system.slice/pids.max", "?"), level: doctor.Note},
		}},
		{doctor.Congestion("auto", "host", "", "cubic"), []change{
			{files: one("proc/sys/net/ipv4/tcp_available_congestion_control", "reno"), level: doctor.Error, mend: "modprobe tcp_cubic"},
			{files: one("proc/sys/net/ipv4/tcp_available_congestion_control", "-"), level: doctor.Note},
			{files: one("proc/sys/net/ipv4/tcp_congestion_control", "-"), level: doctor.Note},
		}},
		{doctor.Backlog, []change{
			{files: one("proc/sys/net/core/somaxconn", "128"), level: doctor.Warning, mend: "sysctl -w net.core.somaxconn='4096'"},
			{files: one("proc/sys/net/core/somaxconn", "many"), level: doctor.Note},
			{files: one("proc/sys/net/core/somaxconn", "-"), level: doctor.Note},
		}},
		{doctor.Windows, []change{
			{files: one("proc/sys/net/ipv4/tcp_wmem", "4096 16384 1048576"), level: doctor.Warning, mend: "sysctl -w net.ipv4.tcp_wmem='4096 65536 16777216'"},
			{files: one("proc/sys/net/ipv4/tcp_rmem", "4096 16384 1048576"), level: doctor.Warning, mend: "net.ipv4.tcp_rmem"},
			{files: one("proc/sys/net/ipv4/tcp_rmem", "4096"), level: doctor.Note},
			{files: one("proc/sys/net/ipv4/tcp_rmem", "a b c"), level: doctor.Note},
			{files: one("proc/sys/net/ipv4/tcp_rmem", "-"), level: doctor.Note},
		}},
		{doctor.DatagramBuffers, []change{
			{files: one("proc/sys/net/core/rmem_max", "212992"), level: doctor.Note, mend: "sysctl -w net.core.rmem_max='8388608'"},
			{files: one("proc/sys/net/core/rmem_max", "-"), level: doctor.Note},
		}},
		{doctor.Port("tcp", addr("127.0.0.1:3260"), false), []change{
			{files: one("proc/net/tcp", heading+loopback), level: doctor.Error, mend: "ss -ltnp 'sport = :3260'"},
			{files: one("proc/net/tcp6", heading+wildcard), level: doctor.Error, mend: "ss -ltnp"},
			{files: one("proc/net/tcp6", "-"), level: doctor.OK},
			{files: one("proc/net/tcp", heading+client), level: doctor.OK},
			{files: one("proc/net/tcp", "-"), level: doctor.Note},
		}},
		{doctor.Port("tcp", addr("127.0.0.2:3260"), false), []change{{files: one("proc/net/tcp", heading+loopback), level: doctor.OK}}},
		{doctor.Port("tcp", addr("[::]:3260"), false), []change{{files: one("proc/net/tcp", heading+loopback), level: doctor.Error, mend: "ss -ltnp"}}},
		{doctor.Port("udp", addr("192.0.2.1:4791"), false), []change{{files: one("proc/net/udp", heading+datagram), level: doctor.Error, mend: "ss -lunp 'sport = :4791'"}}},
		{doctor.Beside(3260, "NVMe"), []change{{files: one("proc/net/tcp", heading+loopback), level: doctor.Note, mend: "ss"}, {files: one("proc/net/tcp", "-"), level: doctor.Note}}},
		{doctor.Folder(state, usable), []change{
			{files: on("tmpfs"), level: doctor.Warning, mend: "findmnt"},
			{files: on("nfs4"), level: doctor.Note},
			{files: on("xfs"), level: doctor.OK},
			{files: one("proc/self/mountinfo", "-"), level: doctor.Note},
		}},
	} {
		t.Run(tt.check.Name, func(t *testing.T) {
			f := doctor.Run(host(nil), []doctor.Check{tt.check})[0]
			if f.Level != doctor.OK || f.Found == "" || f.Mend != "" {
				t.Errorf("a healthy host: %+v", f)
			}
			for _, c := range tt.changes {
				h := host(c.files)
				if c.host != nil {
					c.host(h)
				}
				f := doctor.Run(h, []doctor.Check{tt.check})[0]
				if f.Level != c.level || !strings.Contains(f.Mend, c.mend) || c.mend == "" && f.Mend != "" {
					t.Errorf("%v: %+v, want %v and %q", c.files, f, c.level, c.mend)
				}
				if f.Level > doctor.Note && (f.Cost == "" || f.Mend == "") {
					t.Errorf("%+v says not what it costs, or not what mends it", f)
				}
			}
		})
	}
	// What is wrong on a healthy host, too.
	for _, tt := range []struct {
		check doctor.Check
		level doctor.Level
	}{
		{doctor.Folder("", usable), doctor.Note},
		{doctor.Folder(filepath.Join(state, "none"), usable), doctor.Note},
		{doctor.Folder(file, func() (start, save error) { return errUnusable, errUnusable }), doctor.Error},
		{doctor.Folder(state, func() (start, save error) { return nil, errUnusable }), doctor.Error},
		{doctor.Port("tcp", addr("127.0.0.1:3260"), true), doctor.Error},
		{doctor.Module("siw", "", doctor.Note, "no iSER of the kernel's"), doctor.Note},
		{doctor.Module("ublk_drv", "", doctor.Note, "no ublk"), doctor.Note},
	} {
		if f := doctor.Run(host(nil), []doctor.Check{tt.check})[0]; f.Level != tt.level || f.Mend == "" {
			t.Errorf("%+v, want %v", f, tt.level)
		}
	}
	if f := doctor.Run(host(one("proc/net/tcp", heading+loopback)), []doctor.Check{doctor.Port("tcp", addr("127.0.0.1:3260"), true)})[0]; f.Level != doctor.OK {
		t.Errorf("a port that the running target has: %+v", f)
	}
}

var errUnusable = errors.New("cannot be written")

func usable() (start, save error) { return nil, nil }

// The checks read what this machine has, whatever that is.
func TestThisHost(t *testing.T) {
	all := doctor.Run(&doctor.Host{}, []doctor.Check{doctor.Kernel, doctor.Clock, doctor.Memlock("x", 0), doctor.OpenFiles("x", 1),
		doctor.GroupMemory(0), doctor.GroupCPU, doctor.Congestion(), doctor.Windows, doctor.Folder(t.TempDir(), usable)})
	for _, f := range all {
		if f.Found == "" || f.Level == doctor.Error {
			t.Errorf("%+v", f)
		}
	}
}

func TestReport(t *testing.T) {
	all := []doctor.Finding{
		{Check: "a", Found: "fine"},
		{Check: "longer", Level: doctor.Warning, Found: "slow", Cost: "time", Mend: "faster --now"},
	}
	var b strings.Builder
	if err := doctor.Print(&b, all); err != nil {
		t.Fatal(err)
	}
	const want = `ok       a       fine
warning  longer  slow
         costs  time
         mend   faster --now

1 ok, 0 notes, 1 warning, 0 errors
`
	if b.String() != want {
		t.Errorf("printed\n%s", b.String())
	}
	if doctor.Worst(all) != doctor.Warning || doctor.Worst(nil) != doctor.OK {
		t.Error("the worst of them is a warning, of none it is ok")
	}
	j, err := json.Marshal(all)
	var again []doctor.Finding
	if err == nil {
		err = json.Unmarshal(j, &again)
	}
	if err != nil || !slices.Equal(all, again) {
		t.Errorf("%s is read as %v, %v", j, again, err)
	}
	var l doctor.Level
	if l.UnmarshalText([]byte("good")) == nil {
		t.Error("a level that there is not is read")
	}
}
