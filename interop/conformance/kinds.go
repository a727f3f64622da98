package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"softiser/interop/internal/ports"
)

const (
	iqn        = "iqn.2026-11.softiser:conformance"
	chapSecret = "not-a-secret-42"
)

// chapUsers are the names to log in with; two tests are about names that look
// like encoded numbers.
var chapUsers = map[string]string{
	"": "suite", "iSCSICHAP.HexName": "0x6e616d65", "iSCSICHAP.Base64Name": "0bbmFtZQ==",
}

// kind is one kind of backend.
type kind struct {
	name   string
	typ    string // of the volumes: memory, file, raw
	block  int
	phys   int
	extra  string // more keys of each volume
	short  bool   // part of the short form
	loop   bool   // needs loop devices
	remark string
}

const volumeSize = 256 << 20

var kinds = []kind{
	{name: "file-512", typ: "file", block: 512, phys: 512, short: true, remark: "mapped sparse file"},
	{name: "file-4096", typ: "file", block: 4096, phys: 4096, remark: "mapped sparse file"},
	{name: "file-512e", typ: "file", block: 512, phys: 4096, remark: "512-byte blocks in 4096-byte physical ones"},
	{name: "file-wt", typ: "file", block: 512, phys: 512, extra: "write_through: true, preallocate: true", remark: "preallocated, write-through"},
	{name: "memory-512", typ: "memory", block: 512, phys: 512, remark: "RAM"},
	{name: "memory-4096", typ: "memory", block: 4096, phys: 4096, remark: "RAM"},
	{name: "raw-512", typ: "raw", block: 512, phys: 512, loop: true, remark: "loop device"},
}

// run runs every test on volumes of kind k.
func (k *kind) run(ctx context.Context, o *options, dir string, tests []string) (*summary, error) {
	s := &summary{kind: k.name, remark: k.remark}
	if k.loop {
		if why := loopMissing(); why != "" {
			s.remark += ": not run, " + why
			return s, nil
		}
	}
	started := time.Now()
	family := ""
	var srv *server
	defer func() { srv.stop() }()
	for i, t := range tests {
		if f, _, _ := strings.Cut(t, "."); f != family || srv == nil {
			family = f
			srv.stop()
			var err error
			for try := range 3 { // somebody else may take a port first
				if srv, err = k.serve(ctx, o, filepath.Join(dir, fmt.Sprintf("%s-%d-%d", k.name, i, try))); err == nil {
					break
				}
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k.name, err)
			}
		}
		r := runTest(ctx, o, k.name, t, srv.url(0, t), srv.url(1, t))
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.add(r)
		if srv.dead() {
			return nil, fmt.Errorf("%s: the target has ended (%v) during %s:\n%s", k.name, srv.cmd.ProcessState, t, srv.log.String())
		}
		progress(k.name, i+1, len(tests), s)
	}
	s.took = time.Since(started)
	return s, nil
}

// runTest is one process of the suite.
func runTest(ctx context.Context, o *options, kind, test, url, url2 string) result {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.tool, "--dataloss", "--allow-sanitize", "--Verbose-scsi", "--normal", "--test=ALL."+test, url, url2)
	out := &printed{hang: hangText(test), hung: func() { time.AfterFunc(lastWord, cancel) }}
	cmd.Stdout, cmd.Stderr = out, out
	_ = cmd.Run() // the exit status says nothing
	if o.keep != "" {
		if err := os.MkdirAll(filepath.Join(o.keep, kind), 0o755); err == nil {
			os.WriteFile(filepath.Join(o.keep, kind, test), out.text.Bytes(), 0o644)
		}
	}
	return classify(test, out.text.String(), ctx.Err() != nil)
}

// lastWord is how long a test may go on that has said what it says before it waits for ever.
const lastWord = 2 * time.Second

// printed is what a test prints. It says when a test that is known never to end has come to
// where it waits.
type printed struct {
	text bytes.Buffer
	hang *regexp.Regexp // of the last line; nil: it ends
	hung func()
}

func (p *printed) Write(b []byte) (int, error) {
	n, err := p.text.Write(b)
	if p.hang != nil && p.hang.MatchString(lastLine(p.text.String())) {
		p.hang = nil
		p.hung()
	}
	return n, err
}

// server is a running iser-target.
type server struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	ended chan struct{}
	port  [2]int
	undo  []func()
}

// serve starts a target with four fresh volumes in dir.
func (k *kind) serve(ctx context.Context, o *options, dir string) (*server, error) {
	s := &server{ended: make(chan struct{})}
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o755); err != nil {
		return nil, err
	}
	for i := range s.port {
		s.port[i] = ports.Free()
	}
	conf, err := k.config(s, dir)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "target.yaml")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	s.cmd = exec.CommandContext(ctx, o.target, "serve", "--config", file)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.undo = append(s.undo, func() { os.RemoveAll(dir) })
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.cmd.Wait()
		close(s.ended)
	}()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port[1]))
		if err == nil {
			c.Close()
			return s, nil
		}
		if s.dead() || time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("the target does not listen:\n%s", s.log.String())
		}
	}
}

// config writes the target's configuration: two portals in two port groups,
// LUN 0 as it comes, 1 removable, 2 read-only, 3 slow.
func (k *kind) config(s *server, dir string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "portals:\n")
	for i, p := range s.port {
		fmt.Fprintf(&b, "  - {listen: \"127.0.0.1:%d\", group: %d}\n", p, i+1)
	}
	fmt.Fprintf(&b, "volumes:\n")
	for i, v := range []string{"", "removable: true", "read_only: true", "fault: {read_delay: 2ms, write_delay: 50ms}"} {
		keys := []string{fmt.Sprintf("name: v%d", i), "type: " + k.typ, fmt.Sprintf("block_size: %dB, phys_block_size: %dB", k.block, k.phys)}
		if v != "" {
			keys = append(keys, v)
		}
		path := filepath.Join(dir, fmt.Sprintf("v%d.img", i))
		switch k.typ {
		case "memory":
			keys = append(keys, fmt.Sprintf("size: %dB", volumeSize))
		default:
			if err := makeFile(path, volumeSize); err != nil {
				return "", err
			}
			if k.loop {
				dev, undo, err := attachLoop(path, k.block)
				if err != nil {
					return "", err
				}
				s.undo = append(s.undo, undo)
				path = dev
			}
			keys = append(keys, "path: "+path)
		}
		if k.extra != "" && !strings.Contains(v, "read_only") {
			keys = append(keys, k.extra)
		}
		fmt.Fprintf(&b, "  - {%s}\n", strings.Join(keys, ", "))
	}
	fmt.Fprintf(&b, "  - {name: chap, type: memory, size: 16MiB}\n")
	fmt.Fprintf(&b, "targets:\n  - iqn: %s\n    luns:\n", iqn)
	for i := range 4 {
		fmt.Fprintf(&b, "      - {lun: %d, volume: v%d}\n", i, i)
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(chapSecret), 0o600); err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "  - iqn: %s-chap\n    luns: [{lun: 0, volume: chap}]\n", iqn)
	fmt.Fprintf(&b, "    auth:\n      method: chap\n      users:\n")
	for _, u := range chapUsers {
		fmt.Fprintf(&b, "        - {name: %q, secret_file: %s}\n", u, secret)
	}
	// The suite sleeps for minutes without reading, so no NOP may ask whether it
	// is still there.
	fmt.Fprintf(&b, "iscsi: {nop_interval: 0s}\nadmin: {state_dir: %s}\nlogging: {level: warn}\n", filepath.Join(dir, "state"))
	return b.String(), nil
}

func makeFile(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(size)
}

// url addresses the unit of a test through one of the two portals.
func (s *server) url(portal int, test string) string {
	lun := lunFor(test)
	if lun == lunCHAP {
		user := chapUsers[""]
		if u, ok := chapUsers[test]; ok {
			user = u
		}
		return fmt.Sprintf("iscsi://%s%%%s@127.0.0.1:%d/%s-chap/0", user, chapSecret, s.port[portal], iqn)
	}
	return fmt.Sprintf("iscsi://127.0.0.1:%d/%s/%d", s.port[portal], iqn, lun)
}

func (s *server) dead() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// stop ends the target, gently at first, and takes its volumes away.
func (s *server) stop() {
	if s == nil {
		return
	}
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.ended:
		case <-time.After(10 * time.Second):
			s.cmd.Process.Kill()
			<-s.ended
		}
	}
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
	s.undo = nil
}

func loopMissing() string {
	if os.Geteuid() != 0 {
		return "loop devices need root"
	}
	if out, err := exec.Command("losetup", "--find").CombinedOutput(); err != nil {
		return strings.TrimSpace(string(out))
	}
	return ""
}

func attachLoop(path string, block int) (dev string, undo func(), err error) {
	out, err := exec.Command("losetup", "--find", "--show", "--sector-size", fmt.Sprint(block), path).CombinedOutput()
	if err != nil {
		return "", nil, fmt.Errorf("losetup: %s", bytes.TrimSpace(out))
	}
	dev = string(bytes.TrimSpace(out))
	return dev, func() { exec.Command("losetup", "--detach", dev).Run() }, nil
}
