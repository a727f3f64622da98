package guest

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed files
var files embed.FS

// Kind says what a guest is good for.
type Kind string

const (
	Plain   Kind = "guest"         // an initiator or a target by itself
	Cluster Kind = "guest-cluster" // a node of a cluster too: Corosync, Pacemaker, DRBD, OCFS2, GFS2
)

// packages are the files with the names of the packages of a kind, below files.
func (k Kind) packages() []string {
	if k == Cluster {
		return []string{"packages.txt", clusterPackages}
	}
	return []string{"packages.txt"}
}

const clusterPackages = "packages-cluster.txt"

// Image is a built guest.
type Image struct {
	Kind   Kind
	Dir    string // vmlinux, initrd, root.img
	Kernel string // release of its kernel
}

// Versions returns the packages of the guest that were asked for by name, with
// their Debian versions, one "name version" each.
func (im *Image) Versions() []string {
	b, err := os.ReadFile(filepath.Join(im.Dir, "versions"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// ErrNoQEMU means that this host cannot run guests as it is.
var ErrNoQEMU = errors.New("no qemu-system-x86_64 here, and it cannot be installed: apt-get and root are needed (on other systems: install QEMU and build the guest on Debian)")

// Prepare returns the image of a kind in cache, building it first when its parts have
// changed. progress receives a line per step.
func Prepare(kind Kind, cache string, progress func(string)) (*Image, error) {
	sum, err := digest(kind)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, string(kind)+"-"+sum)
	if release, err := os.ReadFile(filepath.Join(dir, "kernel-release")); err == nil {
		if _, err := exec.LookPath("qemu-system-x86_64"); err == nil {
			return &Image{Kind: kind, Dir: dir, Kernel: strings.TrimSpace(string(release))}, nil
		}
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return nil, ErrNoQEMU
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	scripts, err := os.MkdirTemp("", "guest-build-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scripts)
	if err := unpack(scripts); err != nil {
		return nil, err
	}
	progress("building the guest in " + dir + " (a minute or two, once)")
	cmd := exec.Command("bash", append([]string{filepath.Join(scripts, "build.sh"), dir}, kind.packages()...)...)
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "  guest:") {
			progress(strings.TrimSpace(line))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("building the guest: %w\n%s", err, tail(string(out), 20))
	}
	release, err := os.ReadFile(filepath.Join(dir, "kernel-release"))
	if err != nil {
		return nil, err
	}
	return &Image{Kind: kind, Dir: dir, Kernel: strings.TrimSpace(string(release))}, nil
}

// digest names what an image is made from.
func digest(kind Kind) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(files, "files", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(p)
		if err != nil {
			return err
		}
		// lib.sh is not part of the image: Boot puts it beside the scripts, so
		// a change of it costs no rebuild.
		if n := d.Name(); n != "lib.sh" && (n != clusterPackages || kind == Cluster) {
			fmt.Fprintf(h, "%s %d\n", n, len(b))
			h.Write(b)
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil))[:12], err
}

func unpack(dir string) error {
	entries, err := files.ReadDir("files")
	if err != nil {
		return err
	}
	for _, e := range entries {
		b, err := files.ReadFile("files/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), b, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// CacheDir is where images are kept: $SOFTISER_CACHE, or the user's cache.
func CacheDir() string {
	if d := os.Getenv("SOFTISER_CACHE"); d != "" {
		return d
	}
	if d, err := os.UserCacheDir(); err == nil {
		return filepath.Join(d, "softiser")
	}
	return filepath.Join(os.TempDir(), "softiser-cache")
}
