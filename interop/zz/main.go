package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"softiser/interop/internal/guest"
)

func main() {
	im, err := guest.Prepare(guest.CacheDir(), func(s string) { fmt.Println(s) })
	if err != nil {
		panic(err)
	}
	dir, _ := os.MkdirTemp("/tmp/lvm", "guest-")
	var disks []int64
	for _, a := range os.Args[2:] {
		n, _ := strconv.ParseInt(a, 10, 64)
		disks = append(disks, n<<20)
	}
	share, _ := filepath.Abs("bin")
	ctx, c := context.WithTimeout(context.Background(), 9*time.Minute)
	defer c()
	g, err := im.Boot(ctx, guest.Options{Name: "zz", Dir: dir, Share: share, Disks: disks})
	if err != nil {
		panic(err)
	}
	defer g.Kill()
	b, _ := os.ReadFile(os.Args[1])
	t := time.Now()
	out, err := g.Run(ctx, string(b))
	fmt.Println(out, err, time.Since(t))
}
