package connflags

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
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
	_, port, _ := net.SplitHostPort(srv.Addrs()[1])
	named := url(net.JoinHostPort("localhost", port))
	for _, c := range []struct {
		urls  string
		paths int // 0: an error
		told  int
	}{
		{one + "," + other, 2, 0},
		{one + "," + named, 2, 0}, // whatever its address is called
		{named + "," + one, 2, 0},
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

// What another process had of a path goes on as that path, also when the paths are found in another order.
func TestAllPortalsCarried(t *testing.T) {
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}, {Listen: "127.0.0.1:0"}}})
	if err != nil {
		t.Fatal(err)
	}
	const iqn = "iqn.2026-11.softiser:carried"
	if err := srv.AddTarget(target.Target{Name: iqn}); err != nil {
		t.Fatal(err)
	}
	targettest.Serve(t, srv)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := Register(fs)
	if err := fs.Parse([]string{"--all-portals"}); err != nil {
		t.Fatal(err)
	}
	one, other := "iscsi://"+srv.Addrs()[0]+"/"+iqn+"/0", "iscsi://"+srv.Addrs()[1]+"/"+iqn+"/0"
	ws, err := o.ways(one + "," + other)
	if err != nil {
		t.Fatal(err)
	}
	carried := func(name string) *multipath.Carried {
		return &multipath.Carried{Name: name, Sessions: []*initiator.CarriedSession{{FD: -1}}}
	}
	paths, err := o.dialers(t.Context(), ws, []*multipath.Carried{carried(other), carried(one)})
	if err != nil || len(paths) != 2 {
		t.Fatal(paths, err)
	}
	for _, d := range paths {
		if d.Carried == nil || d.Carried.Name != d.Name {
			t.Errorf("%s goes on with %+v", d.Name, d.Carried)
		}
	}
}

// Each path has a session of its own where one identifier is given, though the portals that the target tells of are
// others than those of the URLs.
func TestAllPortalsISIDs(t *testing.T) {
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer vol.Close()
	const iqn = "iqn.2026-11.softiser:isids"
	var cfg target.Config
	var urls []string
	for i := range 2 {
		_, port, _ := net.SplitHostPort(loopback.FreeAddr(t))
		cfg.Portals = append(cfg.Portals, target.Portal{Listen: "0.0.0.0:" + port, Advertise: fmt.Sprintf("127.0.1.%d:%s", i+1, port)})
		urls = append(urls, "iscsi://127.0.0.1:"+port+"/"+iqn+"/0")
	}
	srv, err := target.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddTarget(target.Target{Name: iqn, LUNs: []target.LUN{{Name: "disk", LUConfig: scsi.LUConfig{Volume: vol}}}}); err != nil {
		t.Fatal(err)
	}
	targettest.Serve(t, srv)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := Register(fs)
	if err := fs.Parse([]string{"--all-portals", "--isid=80a1b2c30000"}); err != nil {
		t.Fatal(err)
	}
	ws, err := o.ways(strings.Join(urls, ","))
	if err != nil {
		t.Fatal(err)
	}
	paths, err := o.dialers(t.Context(), ws, nil)
	if err != nil || len(paths) != 4 {
		t.Fatal(paths, err)
	}
	of := map[string]string{}
	for _, d := range paths {
		p, err := d.Open(t.Context(), multipath.Hooks{Cache: new(blockio.Cache), Changed: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		isid := p.(*initiator.LUN).Sessions()[0].Info().ISID
		if other, ok := of[isid]; ok {
			t.Errorf("%s and %s have one identifier, %s", d.Name, other, isid)
		}
		of[isid] = d.Name
	}
}
