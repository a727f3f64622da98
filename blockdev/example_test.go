package blockdev_test

import (
	"errors"
	"fmt"
	"log"

	"softiser/blockdev"
	"softiser/blockdev/mem"
)

// What a device server does with a WRITE and with a READ: it borrows memory,
// lets the transport fill it or send it, and gives it back. Here copy plays the
// transport. The memory is the volume itself, so nothing else is moved.
func ExampleLease() {
	dev, err := mem.Open(mem.Config{Name: "ram0", Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	var l blockdev.Lease // one per command slot; reused, so that nothing is allocated
	if err := dev.LeaseWrite(&l, 4096, 4096, blockdev.Wait); err != nil {
		log.Fatal(err)
	}
	copy(l.Segs[0], "from the wire")
	err = l.Commit(false) // now it is the content; true would also make it durable
	fmt.Println("direct:", l.Direct, "committed:", err == nil)
	l.Release()

	if err := dev.LeaseRead(&l, 4096, 4096, blockdev.Wait); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", l.Segs[0][:13])
	l.Release()

	// A range is checked before anything is lent.
	err = dev.LeaseRead(&l, 1<<20, 4096, blockdev.Wait)
	fmt.Println(errors.Is(err, blockdev.ErrOutOfRange))

	// Output:
	// direct: true committed: true
	// from the wire
	// true
}
