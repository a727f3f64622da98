// Package tap makes networks for guests that must see a peer's own packets: RoCE covers
// the addresses with its checksum, and so cannot pass QEMU's user-mode network. A Network
// is a network namespace with one Ethernet interface, a tap, whose other end a guest is
// given as a file. Programs run in the namespace find the guest at Guest4 and Guest6,
// all ports are free there, and nothing of it is to be seen outside.
//
// # A wire between the guests of make interop and our RoCE (ADR 182)
//
// Context. RoCE's ICRC covers the addresses, and over IPv4 the identification. QEMU's user-mode
// network, over which every other case runs, rewrites both, so rdma_rxe in a guest and a process on
// the host never understand each other through it. And a host that has rdma_rxe loaded has no UDP port
// 4791 left for us.
//
// Decision. Each worker of the harness makes a network namespace with a tap (interop/internal/tap),
// and every guest that it boots has an interface there, eth1, beside that of the user-mode network.
//
//   - The namespace belongs to a thread of the harness and has no name: it is gone with the process,
//     however that ends. QEMU stays where it is and is given the opened tap as a descriptor, so that
//     the other cases find their ports on the host's loopback as before.
//   - A case says Env.RoCE(mtu); the programs that it starts from then on run in the namespace. Verbs,
//     iSER and NVMe cases share the guest's boot with those of siw: both devices are in one guest.
//   - No offload on the tap (no virtio header): packets are as on a wire, and what we send with GSO is
//     cut by the host's kernel.
//   - Cases named roce/raw-… have every frame pass the harness on its way between tap and guest
//     (package frames, QEMU's -netdev socket), which checks packets as they are on the wire, and loses,
//     doubles, delays and damages some by a seed. The sockets under test stay those that users have.
//   - Loss is made in the guest, in both directions, by netem on eth1 and on an ifb that its ingress
//     goes through: a host need not have netem.
//   - Where a tap cannot be made (no root, no /dev/net/tun) the case is skipped with that reason, in
//     the output and in the table. It counts neither as passed nor as failed, and -again tries it
//     again.
//
// Other ways. Frames alone, with ARP, neighbour discovery and IP in the harness:
// no privileges, but then not the sockets are tested that users have (GSO, GRO, path MTU, the ICRC
// without the identification), and building the image takes root anyway. Two guests and none of our
// programs on the host: the emulation would be measured twice. ip netns add: a name that stays behind
// when the harness is killed.
//
// Consequences. Cases over RoCE use fixed ports, as the namespace is the worker's own, and one of our
// processes at a time, as an address has one port 4791.
package tap

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Addresses of the two ends. The guest gives itself its own.
const (
	Host4, Host6   = "10.9.0.1", "fd00:9::1"
	Guest4, Guest6 = "10.9.0.2", "fd00:9::2"
)

// MTU is what the interface has until SetMTU.
const MTU = 1500

const device = "tap0"

// Network is one such namespace. It lives until Close or the end of the process.
type Network struct {
	calls chan func()
	quit  chan struct{}
	ended chan struct{}
}

// New makes a network. It takes CAP_SYS_ADMIN and CAP_NET_ADMIN (root), /dev/net/tun and
// the command ip; the error says which of them was missing.
func New() (*Network, error) {
	n := &Network{calls: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{})}
	ready := make(chan error)
	go n.serve(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return n, nil
}

// serve is the thread of the namespace. It must live as long as the programs started on
// it, which are killed with the thread that started them.
func (n *Network) serve(ready chan<- error) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// Not the first thread of a process, which ends with that. It is kept from being
		// taken again meanwhile.
		go n.serve(ready)
		<-n.ended
		runtime.UnlockOSThread()
		return
	}
	defer close(n.ended)
	err := setup()
	ready <- err
	if err != nil {
		return
	}
	for {
		select {
		case f := <-n.calls:
			f()
		case <-n.quit:
			return
		}
	}
}

func setup() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("a network namespace: %w", err)
	}
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("keeping %s: %w", device, err)
	}
	for _, args := range []string{
		"link set lo up",
		"addr add " + Host4 + "/24 dev " + device,
		"-6 addr add " + Host6 + "/64 dev " + device + " nodad",
		"link set " + device + " up",
	} {
		if err := ip(args); err != nil {
			return err
		}
	}
	return nil
}

func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// open opens the tap of the calling thread's namespace, and makes it if need be.
func open() (*os.File, error) {
	const tun = "/dev/net/tun"
	fd, err := unix.Open(tun, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tun, err)
	}
	ifr, err := unix.NewIfreq(device)
	if err == nil {
		// Frames without a header of virtio's in front: as on a wire, without offload.
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s of %s: %w", device, tun, err)
	}
	return os.NewFile(uintptr(fd), tun), nil
}

// Do runs f in the namespace. A program that f starts lives in it; one that is to end
// with its parent does so with the network.
func (n *Network) Do(f func() error) error {
	done := make(chan error, 1)
	select {
	case n.calls <- func() { done <- f() }:
		return <-done
	case <-n.ended:
		return errors.New("the network is closed")
	}
}

// File opens the guest's end of the interface, which one guest at a time can hold.
func (n *Network) File() (*os.File, error) {
	var f *os.File
	err := n.Do(func() (err error) { f, err = open(); return err })
	return f, err
}

// SetMTU sets the interface's MTU, bytes.
func (n *Network) SetMTU(bytes int) error {
	return n.Do(func() error { return ip("link set " + device + " mtu " + strconv.Itoa(bytes)) })
}

// Close ends the network, once, and with it programs that end with their parent.
func (n *Network) Close() {
	close(n.quit)
	<-n.ended
}
