package guest

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

//go:embed modules
var modules embed.FS

// building is held while modules are built, or looked for.
var building sync.Mutex

// NVMeAuth returns a folder with the modules of Linux' NVMe host and target over TCP and
// RDMA that know DH-HMAC-CHAP, for the kernel of the image; Debian's do not. They are built when they
// are first asked for, beside the image, so that it costs nothing where no case needs them.
func (im *Image) NVMeAuth(cache string, progress func(string)) (string, error) {
	return im.build("nvme-auth", "NVMe modules with DH-HMAC-CHAP", cache, progress)
}

// Ublk returns a folder with ublk_drv.ko for the kernel of the image, which Debian leaves
// out, in the same way.
func (im *Image) Ublk(cache string, progress func(string)) (string, error) {
	return im.build("ublk", "the module ublk_drv", cache, progress)
}

// build runs modules/NAME.sh, which makes what, unless that has been done.
func (im *Image) build(name, what, cache string, progress func(string)) (string, error) {
	building.Lock()
	defer building.Unlock()
	recipe, err := modules.ReadFile("modules/" + name + ".sh")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(im.Kernel+"\n"), recipe...))
	dir := filepath.Join(cache, name+"-"+hex.EncodeToString(sum[:])[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return "", ErrNoQEMU
	}
	script, err := os.CreateTemp("", name+"-*.sh")
	if err != nil {
		return "", err
	}
	defer os.Remove(script.Name())
	defer script.Close()
	if _, err := script.Write(recipe); err != nil {
		return "", err
	}
	progress("building " + what + " in " + dir + " (a minute, once)")
	if out, err := exec.Command("bash", script.Name(), dir, im.Kernel).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", what, err, tail(string(out), 20))
	}
	return dir, nil
}
