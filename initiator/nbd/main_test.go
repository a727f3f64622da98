package nbd

import (
	"net"
	"testing"

	"softiser/internal/leaktest"
)

func dialRaw(t testing.TB, path string) net.Conn {
	t.Helper()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func TestMain(m *testing.M) { leaktest.Main(m) }
