package nbd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// KernelConfig describes the /dev/nbdN to be made.
type KernelConfig struct {
	Index       int // N; <0: any free one
	Size        int64
	BlockSize   int
	Flags       TransmissionFlags
	Connections int           // sockets, each served by its own hardware queue
	Timeout     time.Duration // the driver gives up a request after; zero: never
	DeadConn    time.Duration // I/O is held so long when the server dies
	Mark        string        // by which MarkOf knows the device again; empty: none
}

// KernelDevice is a connected /dev/nbdN.
type KernelDevice struct {
	Index int
	Path  string
	// Conns are the server's ends of the device's sockets.
	Conns []net.Conn

	nl     *netlink
	family uint16
	mark   string
}

// ErrNoKernel says that this kernel cannot make block devices out of NBD.
var ErrNoKernel = errors.New("nbd: the kernel has no nbd driver (modprobe nbd; without it use the unix socket)")

// netlink is one generic netlink socket.
type netlink struct {
	fd  int
	seq uint32
}

func openNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("nbd: netlink: %w", err)
	}
	tv := unix.NsecToTimeval(int64(10 * time.Second))
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("nbd: netlink: %w", err)
	}
	return &netlink{fd: fd}, nil
}

func (n *netlink) close() { unix.Close(n.fd) }

// call sends a request and waits for its acknowledgement.
func (n *netlink) call(req []byte, f func(payload []byte) error) error {
	if err := unix.Sendto(n.fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		k, _, err := unix.Recvfrom(n.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if done, err := parseMessages(buf[:k], n.seq, f); done || err != nil {
			return err
		}
	}
}

func (n *netlink) next() uint32 { n.seq++; return n.seq }

// family resolves the number of the driver's family.
func (n *netlink) family() (uint16, error) {
	m := newMessage(genlCtrl, ctrlGetFamily, n.next())
	m.str(ctrlAttrName, nbdFamily)
	var id uint16
	err := n.call(m.bytes(), func(p []byte) error {
		v, ok := findAttr(p, ctrlAttrID)
		if !ok || len(v) < 2 {
			return errNetlink
		}
		id = host.Uint16(v)
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, ErrNoKernel
	}
	if err == nil && id == 0 {
		err = errNetlink
	}
	return id, err
}

// ConnectKernel makes a block device. The caller serves Conns.
func ConnectKernel(k KernelConfig) (_ *KernelDevice, err error) {
	nl, err := openNetlink()
	if err != nil {
		return nil, err
	}
	d := &KernelDevice{nl: nl, Index: k.Index, mark: k.Mark}
	var kernel []int
	defer func() {
		for _, fd := range kernel {
			unix.Close(fd) // the driver has its own reference
		}
		if err != nil {
			for _, c := range d.Conns {
				c.Close()
			}
			nl.close()
		}
	}()
	if d.family, err = nl.family(); err != nil {
		return nil, err
	}
	for range max(k.Connections, 1) {
		fd, c, err := pair()
		if err != nil {
			return nil, err
		}
		kernel = append(kernel, fd)
		d.Conns = append(d.Conns, c)
	}
	pid := fmt.Sprintf("/sys/block/nbd%d/pid", k.Index)
	err = untilClosed(func() error {
		return nl.call(connectMessage(d.family, nl.next(), &k, kernel), func(p []byte) (err error) {
			d.Index, err = indexOf(p)
			return err
		})
	}, func() bool { _, err := os.Stat(pid); return err == nil })
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("nbd: making a block device needs CAP_SYS_ADMIN (run as root, or use the unix socket): %w", err)
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("nbd: /dev/nbd%d is in use: %w", k.Index, err)
	case err != nil:
		return nil, fmt.Errorf("nbd: connect: %w", err)
	}
	d.Path = "/dev/nbd" + strconv.Itoa(d.Index)
	return d, nil
}

// How long a device that nobody has connected may be open elsewhere.
const (
	openFor   = 2 * time.Second
	openAgain = 20 * time.Millisecond
)

// untilClosed connects. A device that somebody has open counts as in use for the driver, though
// nobody has connected it: udev and blkid look at it just when it has come. So it is asked
// again for a while, unless the device is connected.
func untilClosed(connect func() error, connected func() bool) error {
	for deadline := time.Now().Add(openFor); ; time.Sleep(openAgain) {
		if err := connect(); !errors.Is(err, unix.EBUSY) || connected() || time.Now().After(deadline) {
			return err
		}
	}
}

// pair makes a socket pair: a descriptor for the kernel, a connection for us.
func pair() (fd int, c net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("nbd: socket pair: %w", err)
	}
	f := os.NewFile(uintptr(fds[1]), "nbd")
	defer f.Close()
	if c, err = net.FileConn(f); err != nil {
		unix.Close(fds[0])
		return 0, nil, fmt.Errorf("nbd: socket pair: %w", err)
	}
	return fds[0], c, nil
}

// WaitReady waits until the device node exists and has its size.
func (d *KernelDevice) WaitReady(timeout time.Duration) error {
	sys := fmt.Sprintf("/sys/block/nbd%d/size", d.Index)
	for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		b, _ := os.ReadFile(sys)
		sectors, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if _, err := os.Stat(d.Path); err == nil && sectors > 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("nbd: %s did not appear within %v (is udev running?)", d.Path, timeout)
		}
	}
}

// Resize tells the driver a new size.
func (d *KernelDevice) Resize(size int64) error {
	if err := d.nl.call(resizeMessage(d.family, d.nl.next(), d.Index, d.mark, size), func([]byte) error { return nil }); err != nil {
		return fmt.Errorf("nbd: resize of %s: %w", d.Path, err)
	}
	return nil
}

// FindKernel returns the device at path, /dev/nbdN, which another process has made and whose
// sockets are not in Conns. Nothing is done to it.
func FindKernel(path string) (*KernelDevice, error) {
	d := &KernelDevice{Path: path, mark: MarkOf(path)}
	if _, err := fmt.Sscanf(path, "/dev/nbd%d", &d.Index); err != nil {
		return nil, fmt.Errorf("nbd: %s is no NBD device", path)
	}
	var err error
	if d.nl, err = openNetlink(); err != nil {
		return nil, err
	}
	if d.family, err = d.nl.family(); err != nil {
		d.nl.close()
		return nil, err
	}
	return d, nil
}

// MarkOf is the mark of the device at path, /dev/nbdN, while it is connected. It is empty where there is none, and
// before Linux 5.14.
func MarkOf(path string) string { return markIn("/sys/block", path) }

func markIn(sys, path string) string {
	b, _ := os.ReadFile(filepath.Join(sys, filepath.Base(path), "backend"))
	return strings.TrimSpace(string(b))
}

// Forget gives up what ConnectKernel or FindKernel has returned; the device stays as it is.
func (d *KernelDevice) Forget() { d.nl.close() }

// DisconnectKernel ends the device at path, /dev/nbdN, whose server is gone.
func DisconnectKernel(path string) error {
	d, err := FindKernel(path)
	if err != nil {
		return err
	}
	return d.Disconnect()
}

// Disconnect ends the device: the driver finishes, sends NBD_CMD_DISC on every
// socket, and lets go.
func (d *KernelDevice) Disconnect() error {
	defer d.nl.close()
	m := newMessage(d.family, nbdDisconnect, d.nl.next())
	m.u32(nbdAttrIndex, uint32(d.Index))
	if err := d.nl.call(m.bytes(), func([]byte) error { return nil }); err != nil {
		return fmt.Errorf("nbd: disconnect of %s: %w", d.Path, err)
	}
	return nil
}
