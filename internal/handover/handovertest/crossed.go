package handovertest

import (
	"encoding/json"
	"net"
	"os"
	"testing"
)

// Crossed is what the next process has of a connection that carry gives away: what is told of it,
// which goes as JSON, and its socket.
func Crossed[K any](t testing.TB, carry func() (K, int, error)) (told K, nc net.Conn) {
	t.Helper()
	k, fd, err := carry()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(&k)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &told); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	if nc, err = net.FileConn(f); err != nil {
		t.Fatal(err)
	}
	return told, nc
}
