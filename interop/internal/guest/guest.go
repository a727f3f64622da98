package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Options describe one guest.
type Options struct {
	Name     string
	Dir      string      // where its console, scripts and outputs stay
	Share    string      // host folder that the guest sees as /host, "" for none
	Forward  map[int]int // port on 127.0.0.1 of the host → port of the guest
	Disks    []int64     // blank disks, bytes: /dev/vdb, /dev/vdc, …
	Images   []string    // disks that are there already, as raw files, before the blank ones
	MemoryMB int         // 0: 1024
	Capture  string      // packet capture of its network, "" for none
	MTU1500  bool        // no segmentation offload: packets as on a wire
	Links    []Link      // more interfaces: eth1, eth2, …
	Netns    string      // network namespace of the host that it is in, "" for the own one
}

// Link is an interface of a guest beside eth0. Two guests are joined by a Link each, with
// Port and Peer exchanged: datagrams on the host's loopback, which do not mind if one of the
// two is not there. With Tap or Open it is an interface of the host.
type Link struct {
	Port, Peer int                      // UDP
	Tap        string                   // name of the interface, made by the caller
	Open       func() (*os.File, error) // opens the interface, wherever it is
	Frames     bool                     // what Open opens is a stream of frames, each behind its length
	MAC        byte                     // part of the hardware address, another one for each guest
}

// netdev is QEMU's for a link; fd is what QEMU has the opened interface as.
func (l Link) netdev(id string, fd int) string {
	switch {
	case l.Open != nil && l.Frames:
		return fmt.Sprintf("socket,id=%s,fd=%d", id, fd)
	case l.Open != nil:
		return fmt.Sprintf("tap,id=%s,fd=%d", id, fd)
	}
	if l.Tap != "" {
		return fmt.Sprintf("tap,id=%s,ifname=%s,script=no,downscript=no", id, l.Tap)
	}
	end := func(name string, port int) string {
		return fmt.Sprintf(",%s.type=inet,%s.host=127.0.0.1,%s.port=%d", name, name, name, port)
	}
	return "dgram,id=" + id + end("local", l.Port) + end("remote", l.Peer)
}

// Guest is a running guest.
type Guest struct {
	dir   string
	name  string
	qemu  *exec.Cmd
	ended chan struct{}
	jobs  atomic.Int64
}

// Boot starts a guest and waits until it takes scripts.
func (im *Image) Boot(ctx context.Context, o Options) (*Guest, error) {
	if err := os.MkdirAll(filepath.Join(o.Dir, "queue"), 0o755); err != nil {
		return nil, err
	}
	lib, err := files.ReadFile("files/lib.sh")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "lib.sh"), lib, 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(o.Dir, "qemu.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args, err := im.arguments(o)
	if err != nil {
		return nil, err
	}
	g := &Guest{dir: o.Dir, name: o.Name, ended: make(chan struct{})}
	command := append([]string{"qemu-system-x86_64"}, args...)
	if o.Netns != "" { // it becomes QEMU, as the same process
		command = append([]string{"ip", "netns", "exec", o.Netns}, command...)
	}
	g.qemu = exec.Command(command[0], command[1:]...)
	g.qemu.Stdout, g.qemu.Stderr = log, log
	for _, l := range o.Links {
		if l.Open == nil {
			continue
		}
		f, err := l.Open()
		if err != nil {
			return nil, err
		}
		defer f.Close()
		g.qemu.ExtraFiles = append(g.qemu.ExtraFiles, f)
	}
	// A guest must not outlive the harness, however that ends.
	g.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.qemu.Start(); err != nil {
		return nil, err
	}
	go func() { g.qemu.Wait(); close(g.ended) }()
	if err := g.await(ctx, "up"); err != nil {
		g.Kill()
		return nil, fmt.Errorf("guest %s did not come up: %w\n%s", o.Name, err, g.console())
	}
	return g, nil
}

// arguments are QEMU's, for one guest of this image.
func (im *Image) arguments(o Options) ([]string, error) {
	mem := o.MemoryMB
	if mem == 0 {
		mem = 1024
	}
	kernel := "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check tsc=reliable audit=0 cryptomgr.notests net.ifnames=0"
	if o.Share != "" {
		kernel += " guest.host"
	}
	user := "user,id=n0,ipv6=off"
	for host, port := range o.Forward {
		user += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-:%d", host, port)
	}
	nic := "virtio-net-pci,netdev=n0"
	if o.MTU1500 {
		nic += ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ufo=off,host_ecn=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off,mrg_rxbuf=off"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35,usb=off,sata=off,smbus=off,vmport=off,hpet=off", "-cpu", "max", "-accel", "tcg,thread=multi,tb-size=512",
		"-smp", "2", "-m", strconv.Itoa(mem),
		"-kernel", filepath.Join(im.Dir, "vmlinux"), "-initrd", filepath.Join(im.Dir, "initrd"), "-append", kernel,
		"-serial", "file:" + filepath.Join(o.Dir, "console.log"),
		"-drive", "file=" + filepath.Join(im.Dir, "root.img") + ",format=raw,if=none,id=root,snapshot=on,file.locking=off", "-device", "virtio-blk-pci,drive=root",
		"-fsdev", "local,id=job,path=" + o.Dir + ",security_model=none,multidevs=remap", "-device", "virtio-9p-pci,fsdev=job,mount_tag=job",
		"-netdev", user, "-device", nic,
		"-device", "virtio-rng-pci",
	}
	fd := 3 // behind the standard files
	for i, l := range o.Links {
		id := fmt.Sprintf("n%d", i+1)
		args = append(args, "-netdev", l.netdev(id, fd), "-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=52:54:00:00:%02x:%02x", id, l.MAC, i+1))
		if l.Open != nil {
			fd++
		}
	}
	if o.Share != "" {
		args = append(args, "-fsdev", "local,id=host,path="+o.Share+",security_model=none,multidevs=remap", "-device", "virtio-9p-pci,fsdev=host,mount_tag=host")
	}
	if o.Capture != "" {
		args = append(args, "-object", "filter-dump,id=dump,netdev=n0,maxlen=65535,file="+o.Capture)
	}
	disks := slices.Clone(o.Images)
	for i, size := range o.Disks {
		p := filepath.Join(o.Dir, fmt.Sprintf("disk%d.img", i))
		f, err := os.Create(p)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
			return nil, err
		}
		disks = append(disks, p)
	}
	for i, p := range disks {
		args = append(args, "-drive", fmt.Sprintf("file=%s,format=raw,if=none,id=d%d,cache=unsafe", p, i), "-device", fmt.Sprintf("virtio-blk-pci,drive=d%d", i))
	}
	return args, nil
}

// Job is a script that runs in the guest.
type Job struct {
	g    *Guest
	name string
}

// Start runs a bash script in the guest, with the helpers of lib.sh, and does
// not wait for it.
func (g *Guest) Start(script string) (*Job, error) {
	name := fmt.Sprintf("job%03d", g.jobs.Add(1))
	tmp := filepath.Join(g.dir, name+".new")
	if err := os.WriteFile(tmp, []byte(". /job/lib.sh\n"+script+"\n"), 0o644); err != nil {
		return nil, err
	}
	return &Job{g, name}, os.Rename(tmp, filepath.Join(g.dir, "queue", name+".sh"))
}

// Output is what the job has printed so far.
func (j *Job) Output() string {
	b, _ := os.ReadFile(filepath.Join(j.g.dir, j.name+".out"))
	return string(b)
}

// Done reports whether the job has ended.
func (j *Job) Done() bool {
	_, err := os.Stat(filepath.Join(j.g.dir, j.name+".rc"))
	return err == nil
}

// Wait waits for the job's end; a status other than 0 is an *ExitError.
func (j *Job) Wait(ctx context.Context) (string, error) {
	if err := j.g.await(ctx, j.name+".rc"); err != nil {
		return j.Output(), fmt.Errorf("guest script %s: %w", j.name, err)
	}
	b, err := os.ReadFile(filepath.Join(j.g.dir, j.name+".rc"))
	if err != nil {
		return j.Output(), err
	}
	if rc := strings.TrimSpace(string(b)); rc != "0" {
		return j.Output(), &ExitError{Job: j.name, Status: rc, Output: j.Output()}
	}
	return j.Output(), nil
}

// ExitError is a guest script that failed.
type ExitError struct{ Job, Status, Output string }

// Error ends with the script's last lines.
func (e *ExitError) Error() string {
	return fmt.Sprintf("guest script %s: status %s\n%s", e.Job, e.Status, tail(e.Output, 25))
}

// Run is Start and Wait.
func (g *Guest) Run(ctx context.Context, script string) (string, error) {
	j, err := g.Start(script)
	if err != nil {
		return "", err
	}
	return j.Wait(ctx)
}

// await waits for a file of the guest's folder. The folder is shared by 9p,
// which has no notification, so it is looked at.
func (g *Guest) await(ctx context.Context, name string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(g.dir, name)); err == nil {
			return nil
		}
		select {
		case <-g.ended:
			return errors.New("the guest has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Kill ends the guest as a power failure would.
func (g *Guest) Kill() {
	g.qemu.Process.Kill()
	<-g.ended
}

// Pause stops the guest as a hypervisor does, or has it go on.
func (g *Guest) Pause(on bool) error {
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	return g.qemu.Process.Signal(sig)
}

// Halt shuts the guest down and returns its kernel log.
func (g *Guest) Halt() string {
	os.WriteFile(filepath.Join(g.dir, "halt"), nil, 0o644)
	select {
	case <-g.ended:
	case <-time.After(10 * time.Second):
		g.Kill()
	}
	b, _ := os.ReadFile(filepath.Join(g.dir, "dmesg"))
	return string(b)
}

func (g *Guest) console() string {
	b, _ := os.ReadFile(filepath.Join(g.dir, "console.log"))
	q, _ := os.ReadFile(filepath.Join(g.dir, "qemu.log"))
	return tail(string(b), 15) + tail(string(q), 5)
}

// Dir is the guest's folder on the host; the guest sees it as /job.
func (g *Guest) Dir() string { return g.dir }
