package file

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// A mistyped name of a device makes no file in /dev, where its content would be in memory.
func TestNoFileInDev(t *testing.T) {
	const path = "/dev/softiser-no-such-device"
	v, err := Open(Config{Path: path, Size: 1 << 20})
	if err == nil {
		v.Close()
		os.Remove(path)
	}
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
	for path, want := range map[string]bool{"/dev/sdx": true, "/dev/vg0/data": true, "/tmp/../dev/sdx": true, "/dev/shm/disk.img": false, "/dev/hugepages/disk.img": false, "/srv/dev/disk.img": false} {
		if devicePath(path) != want {
			t.Errorf("%s: want %v", path, want)
		}
	}
}
