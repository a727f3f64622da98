package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run makes the archive that the arguments ask for; epoch is the time of everything in it, in seconds.
func run(args []string, epoch string, stdout io.Writer) error {
	var (
		flags    = flag.NewFlagSet("image", flag.ContinueOnError)
		version  = flags.String("version", "", "version of the image, and its reference in the archive")
		revision = flags.String("revision", "", "commit that the programs are made from")
		out      = flags.String("out", "", "archive to write")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" || *out == "" || flags.NArg() == 0 {
		return errors.New("-version, -out and at least one ARCH=DIR are needed")
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH, the time of the commit in seconds: %w", err)
	}
	im := image{version: *version, revision: *revision, created: time.Unix(seconds, 0).UTC()}
	for _, arg := range flags.Args() {
		arch, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not ARCH=DIR", arg)
		}
		p := platform{arch: arch}
		for _, name := range programs {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			p.programs = append(p.programs, b)
		}
		im.platforms = append(im.platforms, p)
	}
	l, err := im.layout()
	if err != nil {
		return err
	}
	if err := write(*out, l); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s  %s\n", l.digest(), *out)
	return nil
}

// write makes the file whole or not at all.
func write(path string, l *layout) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".image-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	err = errors.Join(l.archive(f), f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
