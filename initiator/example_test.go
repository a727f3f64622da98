package initiator_test

import (
	"context"
	"fmt"
	"log"

	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/target"
	"softiser/target/scsi"
)

// A target and an initiator in one process: a volume in memory is served on a
// loopback port, opened over iSER, and used as a block device and with
// asynchronous requests.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	vol, err := mem.Open(mem.Config{Name: "ram0", Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer vol.Close()
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}})
	if err != nil {
		log.Fatal(err)
	}
	err = srv.AddTarget(target.Target{Name: "iqn.2026-11.softiser:ram0", LUNs: []target.LUN{{Name: "ram0", LUConfig: scsi.LUConfig{Volume: vol}}}})
	if err != nil {
		log.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()
	defer func() { stop(); <-served }()

	cfg, err := initiator.ParseURL("iser://" + srv.Addrs()[0] + "/iqn.2026-11.softiser:ram0/0")
	if err != nil {
		log.Fatal(err)
	}
	lun, err := initiator.Open(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer lun.Close()
	fmt.Println("size:", lun.Info().Size)

	// A block device …
	block := make([]byte, 4096)
	copy(block, "written over RDMA")
	if _, err := lun.WriteAt(block, 8192); err != nil {
		log.Fatal(err)
	}

	// … and a queue: Done runs on the receive goroutine, in order of completion.
	reqs := make([]*initiator.Request, 4)
	done := make(chan *initiator.Request, len(reqs))
	for i := range reqs {
		reqs[i] = &initiator.Request{
			Op: initiator.OpRead, Off: int64(i) * 4096, Buf: make([]byte, 4096),
			Done: func(r *initiator.Request) { done <- r },
		}
	}
	lun.SubmitBatch(reqs)
	for range reqs {
		if r := <-done; r.Err != nil {
			log.Fatal(r.Err)
		}
	}
	fmt.Printf("block 2: %s\n", reqs[2].Buf[:17])

	// Output:
	// size: 1048576
	// block 2: written over RDMA
}
