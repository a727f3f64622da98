package nvmf_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"softiser/blockdev/mem"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
	"softiser/target"
	subsystems "softiser/target/nvmf"
)

// A subsystem and its host in one process: a volume in memory is served as namespace 1,
// and used as a block device and with asynchronous requests.
func Example() {
	ctx := context.Background()
	vol, err := mem.Open(mem.Config{Name: "ram0", Size: 1 << 20})
	check(err)
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}})
	check(err)
	const nqn = "nqn.2026-11.softiser:ram0"
	check(srv.AddSubsystem(subsystems.SubsystemConfig{NQN: nqn, Namespaces: []subsystems.NamespaceConfig{{NSID: 1, Name: "ram0", Volume: vol}}}))
	check(srv.Listen())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()

	// nvme+tcp://… of iser-initiator is ParseURL. TransportRDMA goes over soft-iWARP.
	ns, err := nvmf.Open(ctx, nvmf.Config{Address: srv.Addrs()[0], Subsystem: nqn, NSID: 1})
	check(err)
	block := make([]byte, ns.Info().BlockSize)
	copy(block, "hello")
	_, err = ns.WriteAt(block, 0)
	check(err)
	check(ns.Flush())

	done := make(chan error, 1)
	r := blockio.Request{Op: blockio.OpRead, Buf: make([]byte, len(block)), Done: func(r *blockio.Request) { done <- r.Err }}
	ns.Submit(&r) // r and its memory are the namespace's until Done
	check(<-done)
	fmt.Printf("%d KiB: %s\n", ns.Info().Size>>10, r.Buf[:5])

	check(ns.Close())
	check(srv.Shutdown(ctx))
	if err := <-served; !errors.Is(err, target.ErrServerClosed) {
		log.Fatal(err)
	}
	check(vol.Close())

	// Output: 1024 KiB: hello
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
