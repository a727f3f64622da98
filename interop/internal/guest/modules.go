package guest

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

//go:embed modules/nvme-auth.sh
var nvmeAuth []byte

// building is held while modules are built, or looked for.
var building sync.Mutex

// NVMeAuth returns a folder with the modules of Linux' NVMe host and target over TCP and
// RDMA that know DH-HMAC-CHAP, for the kernel of the image; Debian's do not. They are built when they
// are first asked for, beside the image, so that it costs nothing where no case needs them.
func (im *Image) NVMeAuth(cache string, progress func(string)) (string, error) {
	building.Lock()
	defer building.Unlock()
	sum := sha256.Sum256(append([]byte(im.Kernel+"\n"), nvmeAuth...))
	dir := filepath.Join(cache, "nvme-auth-"+hex.EncodeToString(sum[:])[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return "", ErrNoQEMU
	}
	script, err := os.CreateTemp("", "nvme-auth-*.sh")
	if err != nil {
		return "", err
	}
	defer os.Remove(script.Name())
	defer script.Close()
	if _, err := script.Write(nvmeAuth); err != nil {
		return "", err
	}
	progress("building NVMe modules with DH-HMAC-CHAP in " + dir + " (a minute, once)")
	if out, err := exec.Command("bash", script.Name(), dir, im.Kernel).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building NVMe modules: %w\n%s", err, tail(string(out), 20))
	}
	return dir, nil
}
