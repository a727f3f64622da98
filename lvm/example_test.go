package lvm_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"softiser/lvm"
	"softiser/lvm/vg"
)

// A volume group on a file, a logical volume in it, and a snapshot that keeps
// what the volume held: vgcreate, lvcreate, lvcreate -s. lvm2 opens the same file
// behind a loop device.
func Example() {
	dir, err := os.MkdirTemp("", "lvm")
	check(err)
	defer os.RemoveAll(dir)
	disk := filepath.Join(dir, "disk.img")
	check(os.WriteFile(disk, nil, 0o600))
	check(os.Truncate(disk, 64<<20))

	// lvm2's own places for locks, archive and backup need root; "-" does without.
	cfg := lvm.Config{Config: vg.Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-"}}
	disks, err := lvm.OpenDisks(cfg, []string{disk})
	check(err)
	g, err := disks.CreateGroup("vg0", disks.Disks, vg.GroupOptions{}, vg.PVOptions{}, "vgcreate vg0")
	check(err)
	check(g.Create(lvm.CreateOptions{Name: "data", Extents: 4}, "lvcreate -l4 -n data vg0")) // of 4 MiB each

	data, err := g.Volume("data") // a blockdev.Device, ready to be served
	check(err)
	block := make([]byte, 512)
	copy(block, "before")
	_, err = data.WriteAt(block, 0)
	check(err)
	check(g.Snapshot(context.Background(), lvm.SnapshotOptions{Origin: "data", Name: "yesterday", Extents: 1}, "lvcreate -s"))
	copy(block, "later!")
	_, err = data.WriteAt(block, 0)
	check(err)

	old, err := g.Volume("yesterday")
	check(err)
	for _, v := range []*lvm.Volume{data, old} {
		_, err := v.ReadAt(block, 0)
		check(err)
		fmt.Printf("%d MiB: %s\n", v.Info().Size>>20, block[:6])
		check(v.Close())
	}
	check(g.Close())

	// Output:
	// 16 MiB: later!
	// 16 MiB: before
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
