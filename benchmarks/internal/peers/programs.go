package peers

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// sources are the programs in C, one a file, with what they share: references as plain as C
// allows, which show what a measurement would give if there were nothing but the wire work or
// the system calls.
//
//go:embed c
var sources embed.FS

// cFlags are how the programs are compiled.
var cFlags = []string{"-O2", "-Wall", "-Wextra", "-pthread"}

// binary is where a program in C is when it has been compiled.
func (e *Env) binary(name string) string { return filepath.Join(e.Scratch, name) }

// Compile makes one of the programs in C, once a run.
func (e *Env) Compile(name string) (string, error) {
	bin := e.binary(name)
	argv := slices.Concat([]string{"cc"}, cFlags, []string{"-o", bin, bin + ".c"})
	e.note(proc.Spec{Argv: argv, Place: proc.Free})
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	headers, err := fs.Glob(sources, "c/*.h")
	if err != nil {
		return "", err
	}
	for _, from := range append(headers, "c/"+name+".c") {
		text, err := sources.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(e.Scratch, path.Base(from)), text, 0o600); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := proc.Run(ctx, proc.Spec{Argv: argv, Place: proc.Free}); err != nil {
		return "", &Unable{fmt.Sprintf("cc compiles nothing: %v", err)}
	}
	return bin, nil
}

// Program is the serving half of a program in C: it listens on a port that is its second word.
func Program(name string, args ...string) func(*Env) (*Server, error) {
	return func(e *Env) (*Server, error) {
		bin, err := e.Compile(name)
		if err != nil {
			return nil, err
		}
		port := strconv.Itoa(proc.FreePort())
		s := &Server{Name: name, URL: port}
		return s, s.start(e, "127.0.0.1:"+port, nil, slices.Concat([]string{bin, "serve", port}, args)...)
	}
}

// ProgramRun runs the asking half of a program in C, the server's: how it asks, and what follows
// the port on its command line.
func (e *Env) ProgramRun(ctx context.Context, s *Server, how string, args ...string) (result.Values, error) {
	return e.helperClient(ctx, s, slices.Concat([]string{e.binary(s.Name), how, s.URL}, args))
}

// ProgramBeside runs the asking half until the returned function ends it, as Beside does.
func (e *Env) ProgramBeside(s *Server, how string, args ...string) (end func() error, err error) {
	return e.beside(slices.Concat([]string{e.binary(s.Name), how, s.URL}, args))
}

// ProgramAlone runs a compiled program in C that has no server.
func (e *Env) ProgramAlone(ctx context.Context, name string, args ...string) (result.Values, error) {
	return e.helperClient(ctx, &Server{}, append([]string{e.binary(name)}, args...))
}

// Millis is the time of a measurement as the programs in C take it.
func (e *Env) Millis() string { return strconv.FormatInt(e.Dur.Milliseconds(), 10) }

// Hop is one process more in front of an NBD server on a unix socket; both count as the server.
func Hop(e *Env, behind *Server) (*Server, error) {
	bin, err := e.Compile("hop")
	if err != nil {
		return nil, err
	}
	_, path, ok := strings.Cut(behind.URL, "socket=")
	if !ok {
		return nil, fmt.Errorf("%s has no unix socket", behind.URL)
	}
	sock := filepath.Join(e.Scratch, fmt.Sprintf("hop-%d.sock", rand.Uint32()))
	s := &Server{Name: "hop", URL: "nbd+unix:///?socket=" + sock, procs: behind.procs, clean: behind.clean}
	return s, s.start(e, sock, nil, bin, sock, path)
}

// Kept is a server of 1 GiB that sums what it is given, in so many MiB of memory, and a process in
// front of it that keeps and sums the payload of up to depth writes: it is asked for it, or not. Both
// count as the server.
func Kept(e *Env, mib string, depth int, asks bool) (*Server, error) {
	how := "takes"
	if asks {
		how = "asks"
	}
	behind, err := Program("kept", mib, how)(e)
	if err != nil {
		return behind, err
	}
	sock := filepath.Join(e.Scratch, fmt.Sprintf("kept-%d.sock", rand.Uint32()))
	s := &Server{Name: "kept", URL: "nbd+unix:///?socket=" + sock, procs: behind.procs}
	return s, s.start(e, sock, nil, e.binary("kept"), sock, behind.URL, strconv.Itoa(depth))
}
