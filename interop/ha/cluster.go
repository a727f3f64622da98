package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softiser/interop/internal/poll"
)

// errUnmade says that the run could not be made; it tells nothing about the target.
var errUnmade = errors.New("the cluster could not be made")

//go:embed node.sh
var nodeScript []byte

const (
	network  = "10.77.0." // of nodes, by number
	ourHost  = network + "254"
	floating = network + "100"
	portal   = floating + ":3260"
	// bootTime is what a node that was fenced is away, beyond its own start.
	bootTime = 4 * time.Second
)

// cluster is a set of nodes on one bridge, which is in our own network namespace.
type cluster struct {
	configuration
	dir   string
	bin   string
	nodes []*node
	log   *watch
	qnetd *exec.Cmd
	power net.Listener
	array *array // of a configuration with storageFence
	wg    sync.WaitGroup

	mu   sync.Mutex // guards what follows
	dead bool       // the power switch does not obey
	gone bool       // the cluster is being taken down: nothing is booted any more
}

// node is one process tree.
type node struct {
	name   string
	number int

	mu   sync.Mutex
	cmd  *exec.Cmd // guarded by mu: process 1
	done chan struct{}
}

// errNoMeans says that this machine cannot run clusters; it wraps the reason.
var errNoMeans = errors.New("not on this machine")

// prepare gives the program's namespaces what is common to all clusters. dir is of the run.
func prepare(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of our own: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	probe := filepath.Join(dir, "overlay")
	if err := os.MkdirAll(probe, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("overlay", probe, "overlay", 0, "lowerdir="+probe+":/usr/sbin"); err != nil {
		return fmt.Errorf("%w: no overlays: %w", errNoMeans, err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil { // qnetd's sockets
		return fmt.Errorf("/run: %w", err)
	}
	if err := ip("link set lo up", "link add br0 type bridge forward_delay 0", "addr add "+ourHost+"/24 dev br0", "link set br0 up"); err != nil {
		return fmt.Errorf("%w: no bridge: %w", errNoMeans, err)
	}
	return nil
}

// ip runs commands of ip(8).
func ip(commands ...string) error {
	for _, c := range commands {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// start makes a cluster of conf in dir and waits until the volume is served.
func start(ctx context.Context, dir, bin string, conf configuration) (c *cluster, err error) {
	c = &cluster{configuration: conf, dir: dir, bin: bin}
	for i := range conf.nodes {
		c.nodes = append(c.nodes, &node{name: fmt.Sprintf("n%d", i+1), number: i + 1})
	}
	defer func() {
		if err != nil {
			c.stop()
			err = fmt.Errorf("%w: %w", errUnmade, err)
		}
	}()
	if err := c.files(); err != nil {
		return c, err
	}
	if c.log, err = newWatch(c.names(), func(n string) string { return filepath.Join(dir, n, "log/pacemaker/pacemaker.log") }); err != nil {
		return c, err
	}
	if c.power, err = net.Listen("unix", c.socket()); err != nil {
		return c, err
	}
	if err := os.Chmod(c.socket(), 0o666); err != nil {
		return c, err
	}
	c.wg.Go(c.powerSwitch)
	if conf.arbiter {
		f, err := os.Create(filepath.Join(dir, "qnetd.log"))
		if err != nil {
			return c, err
		}
		defer f.Close()
		if err := os.MkdirAll("/run/corosync-qnetd", 0o755); err != nil {
			return c, err
		}
		c.qnetd = exec.Command("corosync-qnetd", "-f", "-s", "off", "-c", "off")
		c.qnetd.Stdout, c.qnetd.Stderr, c.qnetd.SysProcAttr = f, f, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.qnetd.Start(); err != nil {
			return c, err
		}
	}
	for _, n := range c.nodes {
		if err := c.boot(n); err != nil {
			return c, err
		}
	}
	return c, c.whole(ctx)
}

// stop ends all nodes at once.
func (c *cluster) stop() {
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	for _, n := range c.nodes {
		c.off(n)
	}
	if c.power != nil {
		c.power.Close()
	}
	c.wg.Wait()
	if c.array != nil {
		c.array.close()
	}
	if c.qnetd != nil && c.qnetd.Process != nil {
		c.qnetd.Process.Kill()
		c.qnetd.Wait()
	}
	if c.log != nil {
		c.log.close()
	}
}

func (c *cluster) socket() string { return filepath.Join(c.dir, "switch.sock") }

func (c *cluster) names() (names []string) {
	for _, n := range c.nodes {
		names = append(names, n.name)
	}
	return names
}

func (c *cluster) node(name string) *node {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// others are the nodes beside n.
func (c *cluster) others(n *node) (more []*node) {
	for _, o := range c.nodes {
		if o != n {
			more = append(more, o)
		}
	}
	return more
}

func (n *node) link() string { return "port" + n.name }

// boot turns a node on, if it is off.
func (c *cluster) boot(n *node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.mu.Lock()
	gone := c.gone
	c.mu.Unlock()
	if n.cmd != nil || gone {
		return nil
	}
	if c.array != nil {
		c.array.refuse(n.name, false) // nothing of its last life is left
	}
	_ = ip("link del " + n.link()) // of its last life, if the kernel has not yet
	f, err := os.OpenFile(filepath.Join(c.dir, n.name, "node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command("bash", filepath.Join(c.dir, "node.sh"), c.dir, n.name, strconv.Itoa(n.number))
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	ready, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	done := make(chan struct{})
	n.cmd, n.done = cmd, done
	c.wg.Go(func() { cmd.Wait(); close(done) })
	if err := ip(fmt.Sprintf("link add %s type veth peer name eth0 netns %d", n.link(), cmd.Process.Pid), "link set "+n.link()+" master br0 up"); err != nil {
		return err
	}
	_, err = ready.Write([]byte("\n"))
	return err
}

// off cuts a node's power. That sends nothing: the cable goes first, or the kernel would
// reset the connections of the processes that it ends.
func (c *cluster) off(n *node) {
	c.cable(n, false)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd != nil {
		n.cmd.Process.Kill()
		<-n.done
		n.cmd = nil
	}
}

// cable pulls or plugs the cable of a node.
func (c *cluster) cable(n *node, in bool) {
	state := "down"
	if in {
		state = "up"
	}
	_ = ip("link set " + n.link() + " " + state) // that of a node that is off may be gone
}

func (n *node) pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// ended reports whether a node that is on has no processes left.
func (n *node) ended() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// on runs a command in a node and returns what it prints.
func (n *node) on(ctx context.Context, args ...string) (string, error) {
	pid := n.pid()
	if pid == 0 {
		return "", fmt.Errorf("node %s is off", n.name)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(pid), "-m", "-u", "-i", "-n", "-p", "--"}, args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %s: %w: %s", n.name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), err
}

// powerSwitch obeys the fence agents.
func (c *cluster) powerSwitch() {
	for {
		conn, err := c.power.Accept()
		if err != nil {
			return
		}
		c.wg.Go(func() {
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err == nil {
				verb, name, _ := strings.Cut(strings.TrimSpace(line), " ")
				answer := c.obey(verb, name)
				c.log.add("switch", verb+" "+name+": "+answer)
				fmt.Fprintln(conn, answer)
			}
		})
	}
}

// obey does what a fence agent asks for, and returns the answer.
func (c *cluster) obey(verb, name string) string {
	c.mu.Lock()
	dead := c.dead
	c.mu.Unlock()
	n := c.node(name)
	switch {
	case verb == "monitor":
		return "ok"
	case verb == "list":
		return strings.Join(c.names(), ", ")
	case dead || n == nil:
		time.Sleep(time.Second) // a switch that is out of order answers late
		return "refused"
	case c.array != nil && verb == "status":
		if c.array.refuses(name) {
			return "off"
		}
	case c.array != nil:
		c.array.refuse(name, verb != "on")
	case verb == "off" || verb == "reboot":
		c.off(n)
		if verb == "reboot" {
			time.AfterFunc(bootTime, func() { c.boot(n) })
		}
	case verb == "on":
		if err := c.boot(n); err != nil {
			return "refused"
		}
	case n.pid() == 0: // status
		return "off"
	}
	return "ok"
}

// breakSwitch has the power switch refuse everything, or obey again.
func (c *cluster) breakSwitch(dead bool) {
	c.mu.Lock()
	c.dead = dead
	c.mu.Unlock()
}

var onlineNodes = regexp.MustCompile(`Online: \[ ([^\]]*) \]`)

// whole waits until all nodes are members, see each other, and one of them serves.
func (c *cluster) whole(ctx context.Context) error {
	state := ""
	err := poll.Until(ctx, patience, fmt.Sprintf("all %d nodes are on line, and one serves", len(c.nodes)), func() (bool, error) {
		for _, n := range c.nodes {
			if err := c.boot(n); err != nil { // one that is off, and that no other node was left to fence
				return false, err
			}
		}
		for _, n := range c.nodes {
			if n.ended() {
				return false, fmt.Errorf("node %s has ended: %s", n.name, tail(filepath.Join(c.dir, n.name, "node.log")))
			}
			out, err := n.on(ctx, "crm_mon", "-1")
			state = out
			m := onlineNodes.FindStringSubmatch(out)
			if err != nil || m == nil || len(strings.Fields(m[1])) != len(c.nodes) {
				time.Sleep(100 * time.Millisecond)
				return false, nil
			}
		}
		_, err := c.owner(ctx)
		return err == nil, nil
	})
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, state)
	}
	return err
}

// owner is the node with the floating address, which comes last and goes first.
func (c *cluster) owner(ctx context.Context) (*node, error) {
	var whole error
	for _, n := range c.nodes {
		out, err := n.on(ctx, "crm_resource", "--resource", "address", "--locate", "--quiet")
		if err != nil {
			whole = errors.Join(whole, err)
			continue
		}
		at := strings.Fields(out)
		if len(at) == 1 && c.node(at[0]) != nil {
			return c.node(at[0]), nil
		}
	}
	return nil, errors.Join(errors.New("no node has the address"), whole)
}

// targetPID is the target on a node, as we see its number.
func (c *cluster) targetPID(n *node) (int, error) {
	// The node's own /proc is where its processes are, and NSpid where the numbers meet.
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	root := n.pid()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", root))
	if err != nil {
		return 0, err
	}
	for _, p := range procs {
		if its, err := os.Readlink(p + "/ns/pid"); err != nil || its != ns {
			continue
		}
		line, err := os.ReadFile(p + "/cmdline")
		args := strings.Split(string(line), "\x00")
		if err == nil && filepath.Base(args[0]) == "iser-target" && slices.Contains(args, "serve") {
			return strconv.Atoi(filepath.Base(p))
		}
	}
	return 0, fmt.Errorf("no iser-target runs on %s", n.name)
}

// freeze stops all processes of a node, or has them go on.
func (n *node) freeze(on bool) error {
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.pid()))
	if err != nil {
		return err
	}
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, p := range procs {
		if its, err := os.Readlink(p + "/ns/pid"); err == nil && its == ns {
			pid, _ := strconv.Atoi(filepath.Base(p))
			_ = syscall.Kill(pid, sig) // it may have ended
		}
	}
	return nil
}
