package connflags

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"softiser/blockdev/mem"
	"softiser/internal/loopback"
	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/targettest"
)

// Two portals of one target are two paths, if both are named, too; and one that is down keeps nobody from asking the other.
func TestAllPortalsOfSeveralURLs(t *testing.T) {
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer vol.Close()
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}, {Listen: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	const iqn = "iqn.2026-11.softiser:portals"
	if err := srv.AddTarget(target.Target{Name: iqn, LUNs: []target.LUN{{Name: "disk", LUConfig: scsi.LUConfig{Volume: vol}}}}); err != nil {
		t.Fatal(err)
	}
	targettest.Serve(t, srv)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := Register(fs)
	if err := fs.Parse([]string{"--all-portals"}); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	o.Events = &told
	url := func(addr string) string { return "iscsi://" + addr + "/" + iqn + "/0" }
	one, other, nobody := url(srv.Addrs()[0]), url(srv.Addrs()[1]), url(loopback.FreeAddr(t))
	for _, c := range []struct {
		urls  string
		paths int // 0: an error
		told  int
	}{
		{one + "," + other, 2, 0},
		{nobody + "," + other, 3, 1}, // which is a path that may come yet
		{nobody, 0, 0},
	} {
		ws, err := o.ways(c.urls)
		if err != nil {
			t.Fatal(err)
		}
		told.Reset()
		paths, err := o.dialers(t.Context(), ws, nil)
		names := map[string]bool{}
		for _, p := range paths {
			names[p.Name] = true
		}
		if (err != nil) != (c.paths == 0) || len(paths) != c.paths || len(names) != c.paths || strings.Count(told.String(), "\n") != c.told {
			t.Errorf("%s: %v, %v; told %q", c.urls, names, err, told.String())
		}
	}
}
