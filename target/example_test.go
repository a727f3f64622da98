package target_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"softiser/blockdev/mem"
	"softiser/target"
	"softiser/target/scsi"
)

// A server with one target of two logical units, for one initiator only. Targets
// and units come and go while it runs.
func Example() {
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}})
	check(err)
	system, err := mem.Open(mem.Config{Name: "system", Size: 64 << 20})
	check(err)
	scratch, err := mem.Open(mem.Config{Name: "scratch", Size: 1 << 30})
	check(err)
	check(srv.AddTarget(target.Target{
		Name: "iqn.2026-11.softiser:host7",
		ACL:  target.ACL{{Initiator: "iqn.2026-11.example:host7"}},
		LUNs: []target.LUN{{Name: "system", LUConfig: scsi.LUConfig{LUN: 0, Volume: system}}},
	}))
	check(srv.Listen()) // binds, so that the address is known
	served := make(chan error, 1)
	go func() { served <- srv.Serve(context.Background()) }()

	check(srv.AddLUN("iqn.2026-11.softiser:host7", target.LUN{Name: "scratch", LUConfig: scsi.LUConfig{LUN: 1, Volume: scratch}}))
	for _, t := range srv.Status().Targets {
		for _, l := range t.LUNs {
			fmt.Println(t.Name, l.LUN, l.Volume)
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	check(srv.Shutdown(ctx)) // running commands end first
	if err := <-served; !errors.Is(err, target.ErrServerClosed) {
		log.Fatal(err)
	}
	check(system.Close()) // volumes belong to who opened them
	check(scratch.Close())

	// Output:
	// iqn.2026-11.softiser:host7 0 system
	// iqn.2026-11.softiser:host7 1 scratch
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
