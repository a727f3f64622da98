package connflags

import (
	"testing"

	"github.com/spf13/pflag"

	"softiser/blockdev/mem"
	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/targettest"
)

// Two portals of one target are two paths, if both are named, too.
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
	ws, err := o.ways("iscsi://" + srv.Addrs()[0] + "/" + iqn + "/0,iscsi://" + srv.Addrs()[1] + "/" + iqn + "/0")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := o.dialers(t.Context(), ws, nil)
	if err != nil || len(paths) != 2 || paths[0].Name == paths[1].Name {
		t.Errorf("%v, %v", paths, err)
	}
}
