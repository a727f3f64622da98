package systemd_test

import (
	"os"
	"reflect"
	"strconv"
	"testing"

	"softiser/internal/systemd"
)

// What is not for this process is left alone. (What is for it has descriptors from 3 on,
// which a test binary has other things in: see TestSocketActivation of cmd/iser-target.)
func TestSockets(t *testing.T) {
	me := strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		pid, fds, names string
		want            []systemd.Socket
		wrong           bool
	}{
		{}, {pid: "1", fds: "2"}, {pid: "x", fds: "2"}, {fds: "1"},
		{pid: me, fds: "0", want: []systemd.Socket{}},
		{pid: me, fds: "-1", wrong: true}, {pid: me, wrong: true}, {pid: me, fds: "70000", wrong: true},
	} {
		t.Setenv("LISTEN_PID", tt.pid)
		t.Setenv("LISTEN_FDS", tt.fds)
		t.Setenv("LISTEN_FDNAMES", tt.names)
		got, err := systemd.Sockets()
		if (err != nil) != tt.wrong || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%+v: %v, %v", tt, got, err)
		}
		if os.Getenv("LISTEN_FDS") != "" {
			t.Error("children would take the sockets for theirs")
		}
	}
}
