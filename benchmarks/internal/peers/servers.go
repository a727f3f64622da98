package peers

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"softiser/benchmarks/internal/proc"
)

// TargetConfig is how our target is set up; the zero value has its defaults.
type TargetConfig struct {
	Volume   string // of the volume under test, YAML: its type with what that needs; default memory
	CRC      string // required (default), offered, off
	BusyPoll string // auto (default), or µs
	Metrics  bool
	NVMe     bool   // the volume is a namespace, too; see NVMe
	RoCE     bool   // there is a portal at RoCEAddr, too; see RoCE
	Volumes  string // further volumes, YAML list items
	LUNs     string // further LUNs of the target, YAML list items
}

// targetYAML is the configuration of our target: one volume.
const targetYAML = `portals:
  - listen: %s
%svolumes:
  - {name: ram0, type: %s}
%stargets:
  - iqn: iqn.2026-11.softiser:ram0
    luns:
      - {lun: 0, volume: ram0}
%s%stransport:
  crc: %s
  busy_poll_us: %s
logging:
  level: warn
`

// subsystemYAML makes the volume of targetYAML a namespace.
const subsystemYAML = `subsystems:
  - nqn: nqn.2026-11.softiser:ram0
    namespaces:
      - {nsid: 1, volume: ram0}
`

// yaml is the configuration of a target that listens on addr.
func (c *TargetConfig) yaml(addr string) string {
	subsystems := ""
	if c.NVMe {
		subsystems = subsystemYAML
	}
	volume := cmp.Or(c.Volume, fmt.Sprintf("memory, size: %dMiB", VolumeSize>>20))
	roce := ""
	if c.RoCE {
		roce = "  - listen: roce://" + RoCEAddr + "\n"
	}
	return fmt.Sprintf(targetYAML, addr, roce, volume, c.Volumes, c.LUNs, subsystems, cmp.Or(c.CRC, "required"), cmp.Or(c.BusyPoll, "auto"))
}

// Target starts our target.
func Target(e *Env, c TargetConfig) (*Server, error) {
	addr := fmt.Sprintf("127.0.0.1:%d", proc.FreePort())
	s := &Server{Name: "iser-target", URL: "iser://" + addr + "/iqn.2026-11.softiser:ram0/0"}
	base := filepath.Join(e.Scratch, fmt.Sprintf("target-%d", rand.Uint32()))
	if err := os.WriteFile(base+".yaml", []byte(c.yaml(addr)), 0o600); err != nil {
		return nil, err
	}
	argv := []string{e.Ours("iser-target"), "serve", "--config", base + ".yaml", "--socket", base + ".sock"}
	if c.Metrics {
		s.Metrics = fmt.Sprintf("127.0.0.1:%d", proc.FreePort())
		argv = append(argv, "--metrics", s.Metrics)
	}
	return s, s.start(e, addr, nil, argv...)
}

// TCP returns the URL of the same volume over plain iSCSI.
func TCP(url string) string { return "iscsi" + url[len("iser"):] }

// TCPDigest is TCP with a digest of data, which the target computes whatever its CRC.
func TCPDigest(url string) string { return TCP(url) + "?data_digest=crc32c" }

// RoCE returns the URL of the same volume over iSER and RoCE, of a target with TargetConfig.RoCE.
func RoCE(url string) string {
	_, path, _ := strings.Cut(strings.TrimPrefix(url, "iser://"), "/")
	return "iser+roce://" + RoCEAddr + "/" + path
}

// NVMe returns the URL of the same volume over NVMe/TCP, of a target with TargetConfig.NVMe.
func NVMe(url string) string { return namespace("nvme+tcp://", url) }

// NVMeRDMA is NVMe over NVMe/RDMA.
func NVMeRDMA(url string) string { return namespace("nvme+rdma://", url) }

func namespace(scheme, url string) string {
	addr, _, _ := strings.Cut(strings.TrimPrefix(url, "iser://"), "/")
	return scheme + addr + "/nqn.2026-11.softiser:ram0/1"
}

// Nbdkit starts nbdkit's memory plugin on loopback TCP.
func Nbdkit(e *Env) (*Server, error) {
	port := strconv.Itoa(proc.FreePort())
	s := &Server{Name: "nbdkit memory", URL: "nbd://127.0.0.1:" + port}
	return s, s.start(e, "127.0.0.1:"+port, nil, "nbdkit", "-f", "-i", "127.0.0.1", "-p", port, "memory", fmt.Sprintf("%dM", VolumeSize>>20))
}

// NbdkitReno is the same in a network namespace whose congestion control is
// reno: NBD servers and clients have no option for it. It needs root.
func NbdkitReno(e *Env) (*Server, error) {
	ns := fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), rand.Uint32())
	s := &Server{Name: "nbdkit memory, reno", Under: []string{"ip", "netns", "exec", ns}}
	s.clean = append(s.clean, func() { proc.Quick("ip", "netns", "del", ns) })
	for _, argv := range [][]string{
		{"ip", "netns", "add", ns},
		{"ip", "-n", ns, "link", "set", "lo", "up"},
		{"ip", "netns", "exec", ns, "sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=reno"},
	} {
		e.note(proc.Spec{Argv: argv, Place: proc.Free})
		if out, err := proc.Quick(argv...); err != nil {
			return s, &Unable{fmt.Sprintf("no network namespace with reno (root is needed): %s", strings.TrimSpace(string(out)))}
		}
	}
	const port = "10809" // nobody else is there
	s.URL = "nbd://127.0.0.1:" + port
	p, err := s.launch(e, nil, slices.Concat(s.Under, []string{"nbdkit", "-f", "-i", "127.0.0.1", "-p", port, "memory", fmt.Sprintf("%dM", VolumeSize>>20)}))
	if err != nil {
		return s, err
	}
	return s, p.Wait("listen", func() error {
		_, err := proc.Quick(slices.Concat(s.Under, []string{"bash", "-c", "</dev/tcp/127.0.0.1/" + port})...)
		return err
	})
}

// NbdkitUnix is the same on a unix socket.
func NbdkitUnix(e *Env) (*Server, error) {
	sock := filepath.Join(e.Scratch, fmt.Sprintf("nbdkit-%d.sock", rand.Uint32()))
	s := &Server{Name: "nbdkit memory (unix)", URL: "nbd+unix:///?socket=" + sock}
	return s, s.start(e, sock, nil, "nbdkit", "-f", "-U", sock, "memory", fmt.Sprintf("%dM", VolumeSize>>20))
}

// mallocEnv keeps glibc from mapping and unmapping every large buffer, which
// costs tgt and qemu most of their bandwidth.
var mallocEnv = []string{"MALLOC_MMAP_THRESHOLD_=67108864", "MALLOC_TRIM_THRESHOLD_=134217728", "MALLOC_TOP_PAD_=67108864"}

// Tgt starts tgt with a backing file in memory and large negotiation limits.
func Tgt(e *Env) (*Server, error) {
	tgtd, _ := proc.Have("tgtd")
	tgtadm, _ := proc.Have("tgtadm")
	const iqn = "iqn.2026-11.softiser.bench:tgt"
	port, control := proc.FreePort(), strconv.Itoa(20000+rand.IntN(10000))
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	s := &Server{Name: "tgt", URL: "iscsi://" + addr + "/" + iqn + "/1"}
	img, err := s.shm("tgt")
	if err != nil {
		return s, err
	}
	// tgtd ignores SIGTERM while it has targets, so the harness ends it by
	// SIGKILL; its control socket stays behind.
	s.clean = append(s.clean, func() {
		os.Remove("/var/run/tgtd/socket." + control)
		os.Remove("/var/run/tgtd/socket." + control + ".lock")
	})
	if err := s.start(e, addr, mallocEnv, tgtd, "-f", "-C", control, "--iscsi", "portal="+addr); err != nil {
		return s, err
	}
	steps := [][]string{
		{"--op", "new", "--mode", "target", "--tid", "1", "-T", iqn},
		{"--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", img},
		{"--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"},
	}
	for _, kv := range [][2]string{
		{"MaxRecvDataSegmentLength", "1048576"}, {"MaxXmitDataSegmentLength", "1048576"}, {"FirstBurstLength", "1048576"},
		{"MaxBurstLength", "16776192"}, {"ImmediateData", "Yes"}, {"InitialR2T", "No"}, {"MaxOutstandingR2T", "16"}, {"MaxQueueCmd", "128"},
	} {
		steps = append(steps, []string{"--op", "update", "--mode", "target", "--tid", "1", "--name", kv[0], "--value", kv[1]})
	}
	for _, st := range steps {
		argv := append([]string{tgtadm, "-C", control, "--lld", "iscsi"}, st...)
		e.note(proc.Spec{Argv: argv})
		var out []byte
		for range 20 { // the control socket comes up after the portal
			if out, err = proc.Quick(argv...); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			return s, fmt.Errorf("tgtadm: %w: %s", err, out)
		}
	}
	return s, nil
}

// QemuNBD starts qemu-nbd exporting another server's iscsi:// URL on a unix
// socket; both processes count as the server.
func QemuNBD(e *Env, behind *Server) (*Server, error) {
	sock := filepath.Join(e.Scratch, fmt.Sprintf("qemu-nbd-%d.sock", rand.Uint32()))
	s := &Server{Name: "qemu-nbd of " + behind.Name, URL: "nbd+unix:///?socket=" + sock, procs: behind.procs, clean: behind.clean}
	return s, s.start(e, sock, mallocEnv, "qemu-nbd", "-t", "-f", "raw", "-e", "8", "-k", sock, behind.URL)
}

// Attach starts iser-initiator attach in front of another server.
func Attach(e *Env, behind *Server, url string) (*Server, error) {
	dir := filepath.Join(e.Scratch, fmt.Sprintf("run-%d", rand.Uint32()))
	sock := filepath.Join(e.Scratch, fmt.Sprintf("attach-%d.sock", rand.Uint32()))
	s := &Server{Name: "attach", URL: "nbd+unix:///?socket=" + sock, procs: behind.procs, clean: behind.clean}
	return s, s.start(e, sock, nil, e.Ours("iser-initiator"), "attach", "--device=none", "--run-dir", dir, "--socket", sock, url)
}
