package tap

import (
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// network makes a network, or skips the test where that is not allowed.
func network(t *testing.T) *Network {
	t.Helper()
	n, err := New()
	if err != nil {
		t.Skipf("no tap here: %v", err)
	}
	return n
}

// What runs in the namespace sees its addresses, and nobody else does.
func TestNamespace(t *testing.T) {
	n := network(t)
	defer n.Close()
	var out []byte
	if err := n.Do(func() (err error) { out, err = exec.Command("ip", "addr").CombinedOutput(); return err }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{device, Host4 + "/24", Host6 + "/64"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s is missing:\n%s", want, out)
		}
	}
	if _, err := net.InterfaceByName(device); err == nil {
		t.Errorf("%s is there outside of the namespace", device)
	}
	if err := n.SetMTU(9000); err != nil {
		t.Error(err)
	}
	if err := n.Do(func() error {
		out, err := exec.Command("ip", "link", "show", device).CombinedOutput()
		if !strings.Contains(string(out), "mtu 9000") {
			t.Errorf("%s", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// One guest after the other can hold the interface, not two at a time.
func TestFile(t *testing.T) {
	n := network(t)
	defer n.Close()
	for range 2 {
		f, err := n.File()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := n.File(); err == nil {
			second.Close()
			t.Error("two at a time")
		}
		f.Close()
	}
}

// A program that is to end with its parent ends with the network, not before.
func TestCloseEndsPrograms(t *testing.T) {
	n := network(t)
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it has ended already: %v", err)
	}
	n.Close()
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v", err)
	}
	if err := n.Do(func() error { return nil }); err == nil {
		t.Error("a closed network runs programs")
	}
}
