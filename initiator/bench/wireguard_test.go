package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/initiator/internal/e2e"
	"softiser/internal/await"
)

// machine has a network, processes and /run of its own. All of it ends with the test.
type machine struct {
	t   *testing.T
	pid int // of its first process
}

func newMachine(t *testing.T) *machine {
	c := exec.Command("sh", "-c", "mount --make-rprivate / && mount -t tmpfs tmpfs /run && mount -t proc proc /proc && ip link set lo up && echo up && exec cat")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Skipf("namespaces: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Process.Kill()
		c.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Skipf("namespaces: %q, %v", line, err)
	}
	return &machine{t, c.Process.Pid}
}

func (m *machine) command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(m.pid), "-n", "-m", "-p", "--"}, args...)...)
}

// run returns what a command prints, which has to succeed.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// watch counts what goes over the interface eth0 of the machine: packets of WireGuard, and
// others of IP.
func (m *machine) watch() (tunnelled, other *atomic.Int64) {
	tunnelled, other = new(atomic.Int64), new(atomic.Int64)
	socket, failed := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		fd, err := packets(m.pid)
		failed <- err
		if err == nil {
			socket <- fd
		}
	}()
	if err := <-failed; err != nil {
		m.t.Fatal(err)
	}
	fd, done := <-socket, make(chan struct{})
	go func() {
		defer close(done)
		for b := make([]byte, 64<<10); ; {
			n, _, err := unix.Recvfrom(fd, b, 0)
			switch {
			case err == unix.EINTR:
			case err != nil:
				return // its time is up: see the cleanup
			case n < 38 || binary.BigEndian.Uint16(b[12:]) != unix.ETH_P_IP:
				// ARP, neighbours of IPv6.
			case b[23] == unix.IPPROTO_UDP && (binary.BigEndian.Uint16(b[34:]) == 51820 || binary.BigEndian.Uint16(b[36:]) == 51820):
				tunnelled.Add(1)
			default:
				other.Add(1)
			}
		}
	}()
	m.t.Cleanup(func() {
		// The call that waits ends with the interface that it waits for.
		m.command("ip", "link", "del", "eth0").Run()
		<-done
		unix.Close(fd)
	})
	return tunnelled, other
}

// packets is a socket for all that goes over eth0, made in the network of a process.
func packets(pid int) (int, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, err
	}
	ifc, err := net.InterfaceByName("eth0")
	if err != nil {
		return 0, err
	}
	all := uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return 0, err
	}
	// What comes while nobody reads is kept: more than all that the test moves.
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifc.Index})
	}
	if err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// recipe is the two configurations of the tutorial, the target's and the initiator's, with keys.
func recipe(t *testing.T) [2]string {
	page, err := os.ReadFile("../../docs/tutorials/encryption.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```\n(\\[Interface\\].*?)```").FindAllStringSubmatch(string(page), -1)
	if len(found) != 2 {
		t.Fatalf("the tutorial has %d configurations", len(found))
	}
	key := func(in string, args ...string) string {
		c := exec.Command("wg", args...)
		c.Stdin = strings.NewReader(in)
		out, err := c.Output()
		if err != nil {
			t.Fatalf("wg %v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	var private, public, texts [2]string
	for i := range private {
		private[i] = key("", "genkey")
		public[i] = key(private[i], "pubkey")
	}
	for i := range texts {
		texts[i] = strings.NewReplacer("PrivateKey = …", "PrivateKey = "+private[i], "PublicKey = …", "PublicKey = "+public[1-i]).Replace(found[i][1])
		if strings.Contains(texts[i], "…") {
			t.Fatalf("something is left open:\n%s", found[i][1])
		}
	}
	return texts
}

// The recipe of the tutorial: every wire goes through WireGuard, RDMA too, nothing goes
// in clear, and who comes beside the tunnel finds nobody. Where the kernel has no WireGuard it is
// wireguard-go's.
func TestThroughWireGuard(t *testing.T) {
	for _, name := range []string{"wg-quick", "wg", "ip", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed (make tools)", name)
		}
	}
	target, generator := e2e.Binary(t, "iser-target"), e2e.Binary(t, "iser-initiator")
	a, b := newMachine(t), newMachine(t) // the target's and the initiator's
	link := exec.Command("ip", "link", "add", "name", "eth0", "netns", strconv.Itoa(a.pid), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(b.pid))
	if out, err := link.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir, conf := t.TempDir(), recipe(t)
	for i, m := range []*machine{a, b} {
		m.run("ip", "addr", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
		m.run("ip", "link", "set", "eth0", "up")
		file := filepath.Join(dir, strconv.Itoa(i), "wg0.conf")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(conf[i]), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := m.command("wg-quick", "up", file).CombinedOutput(); err != nil {
			t.Skipf("wg-quick: %v\n%s", err, out) // neither the kernel's nor wireguard-go
		}
	}
	tunnelled, other := a.watch()

	file := filepath.Join(dir, "target.yaml")
	err := os.WriteFile(file, []byte(`
portals: [{listen: "10.88.0.1:3260"}, {listen: "roce://10.88.0.1", group: 2}]
volumes: [{name: d, type: memory, size: 16MiB}]
targets: [{iqn: "iqn.2026-11.softiser:disk", luns: [{lun: 0, volume: d}], acl: {networks: [10.88.0.0/24]}}]
subsystems: [{nqn: "nqn.2026-11.softiser:disk", namespaces: [{nsid: 1, volume: d}], networks: [10.88.0.0/24]}]
logging: {level: warn}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	serve := a.command(target, "serve", "--config", file)
	serve.Stdout, serve.Stderr = &log, &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		serve.Process.Kill()                // it is nsenter
		a.command("kill", "-9", "-1").Run() // if it did not go with nsenter
		serve.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	const iqn, nqn = "/iqn.2026-11.softiser:disk/0", "/nqn.2026-11.softiser:disk/1"
	if !await.Until(func() bool { return b.command(generator, "info", "iser://10.88.0.1"+iqn).Run() == nil }) {
		t.Fatal("the target does not answer")
	}
	const bytesEach = 2 << 20
	for _, url := range []string{
		"iser://10.88.0.1" + iqn, "iscsi://10.88.0.1" + iqn, "nvme+tcp://10.88.0.1:3260" + nqn, "nvme+rdma://10.88.0.1:3260" + nqn,
		"iser+roce://10.88.0.1" + iqn, "nvme+roce://10.88.0.1:3260" + nqn,
	} {
		before := tunnelled.Load()
		out := b.run(generator, "bench", url, "--eta=never", "--rw=randwrite", "--bs=64k", "--iodepth=8", "--size="+strconv.Itoa(bytesEach), "--verify=crc32c")
		if !strings.Contains(out, "bad=0") {
			t.Errorf("%s: %s", url, out)
		}
		// It is written, and read.
		seen := func() int64 { return tunnelled.Load() - before }
		if !await.Until(func() bool { return seen() >= 2*bytesEach/1500 }) {
			t.Errorf("%s: only %d packets of WireGuard", url, seen())
		}
	}
	if n := other.Load(); n > 0 {
		t.Errorf("%d packets went in clear", n)
	}
	if out, err := b.command(generator, "info", "iser://192.0.2.1"+iqn, "--login-timeout=2s").CombinedOutput(); err == nil {
		t.Errorf("the target answers beside the tunnel:\n%s", out)
	}
}
