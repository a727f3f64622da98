package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"softiser/initiator/blockio"
	"softiser/initiator/connflags"
	"softiser/internal/durable"
	"softiser/internal/sizeflag"
	"softiser/internal/terminal"
)

// copyFlags are common to read, write and verify.
type copyFlags struct {
	offset, length, chunk sizeflag.Value
	depth                 int
	sparse, pad           bool
	fua, flush            bool
	json, quiet, force    bool
	conn                  *connflags.Options
}

func (f *copyFlags) register(cmd *cobra.Command) {
	f.length, f.chunk = -1, 1<<20
	fs := cmd.Flags()
	fs.Var(&f.offset, "offset", "where on the volume to start")
	fs.Var(&f.length, "length", "how much (default: to the end of the volume, or of the input)")
	fs.Var(&f.chunk, "chunk", "bytes per request")
	fs.IntVar(&f.depth, "depth", 16, "requests in flight at once")
	fs.BoolVar(&f.json, "json", false, "report as JSON")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress and no report")
	f.conn = connflags.Register(fs)
}

// open opens the volume and makes the stream that the options describe.
func (f *copyFlags) open(cmd *cobra.Command, url string) (*stream, error) {
	if f.depth < 1 || f.depth > 1024 {
		return nil, usage("--depth %d: want 1 to 1024", f.depth)
	}
	l, err := f.conn.Open(cmd.Context(), url, connflags.Tuning{})
	if err != nil {
		return nil, err
	}
	s := &stream{lun: l, off: int64(f.offset), length: int64(f.length), chunk: int(f.chunk), depth: f.depth, sparse: f.sparse, pad: f.pad, fua: f.fua}
	if err := s.check(); err != nil {
		l.Close()
		return nil, err
	}
	s.padLength()
	return s, nil
}

// check compares the range with the volume.
func (s *stream) check() error {
	info := s.lun.Info()
	bs := int64(info.BlockSize)
	switch {
	case s.chunk < 512 || s.chunk > 64<<20:
		return usage("--chunk %d: want 512 bytes to 64 MiB", s.chunk)
	case int64(s.chunk)%bs != 0:
		return usage("--chunk %d is not a multiple of the volume's block size, %d", s.chunk, bs)
	case s.off%bs != 0:
		return usage("--offset %d is not a multiple of the volume's block size, %d", s.off, bs)
	case s.off > info.Size:
		return usage("--offset %d lies behind the end of the volume, which has %d bytes", s.off, info.Size)
	case s.length > info.Size-s.off:
		return usage("--length %d from %d on goes beyond the end of the volume, which has %d bytes", s.length, s.off, info.Size)
	case s.length > 0 && s.length%bs != 0 && !s.pad:
		return usage("--length %d is not a multiple of the volume's block size, %d", s.length, bs)
	}
	return nil
}

func (s *stream) outcome(op, url string) outcome {
	return outcome{Operation: op, URL: url, Offset: s.off, Bytes: s.moved, Zeroes: s.zeroes}
}

// readCommand builds the command that copies from a volume to a file or to standard
// output.
func readCommand() *cobra.Command {
	f := &copyFlags{}
	cmd := &cobra.Command{
		Use:   "read URL [FILE]",
		Short: "Copy a volume, or a part of it, to a file",
		Long:  "Copy a volume, or a part of it, to FILE or (without FILE, or with -) to standard\noutput, a terminal only with -. An existing file is replaced only with --force,\nand only by the whole: what an interrupted run has read is dropped. What a killed one\nhas left (.FILE.*.part) the next one for the same FILE drops.",
		Example: `  iser-initiator read iser://127.0.0.1/iqn.2026-11.softiser:demo/0 disk.img --sparse
  iser-initiator read iser://127.0.0.1/iqn.2026-11.softiser:demo/0 --offset 1MiB --length 4KiB | xxd`,
		Args: cobra.RangeArgs(1, 2),
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.sparse, "sparse", false, "make holes in FILE where the volume holds zeroes")
	cmd.Flags().BoolVarP(&f.force, "force", "f", false, "replace FILE")
	cmd.RunE = f.read
	return cmd
}

// read is the command: a is its arguments.
func (f *copyFlags) read(cmd *cobra.Command, a []string) error {
	out, toStdout := os.Stdout, len(a) < 2 || a[1] == "-"
	if len(a) < 2 && terminal.Is(out) {
		return usage("standard output is a terminal: name a FILE, pass the data on through a pipe, or type - to have it on the screen")
	}
	s, err := f.open(cmd, a[0])
	if err != nil {
		return err
	}
	defer s.lun.Close()
	var file *durable.Replacement
	if !toStdout {
		if file, err = create(a[1], f.force); err != nil {
			return err
		}
		defer file.Discard()
		out = file.File
	}
	if s.length < 0 {
		s.length = s.lun.Info().Size - s.off
	}
	s.prog = startProgress("read", s.length, !f.quiet && !f.json)
	defer s.prog.stop()
	begun := time.Now()
	take, finish := s.toFile(out)
	ctx := cmd.Context()
	if err := s.read(ctx, func(p []byte) error { return orEnd(ctx, func() error { return take(p) }) }); err != nil {
		return err
	}
	if err := finish(); err != nil {
		return err
	}
	if !toStdout {
		if err := file.Keep(f.force); err != nil {
			return err
		}
	}
	s.prog.stop()
	o := s.outcome("read", a[0])
	return f.report(cmd, &o, begun, toStdout)
}

// create opens FILE for writing. An existing one is refused unless replace is
// set; a device or a pipe is written in place then.
func create(name string, replace bool) (*durable.Replacement, error) {
	st, err := os.Stat(name)
	switch {
	case err == nil && st.IsDir():
		return nil, usage("%s is a folder; name a file in it", name)
	case err == nil && !replace && !st.Mode().IsRegular():
		return nil, usage("%s exists and is no ordinary file; --force writes to what is there", name)
	case err == nil && !replace:
		return nil, usage("%s exists; --force replaces it", name)
	}
	return durable.Replace(name)
}

// unequal returns why an input is another one than the volume though nothing has been found that differs, for which
// programs have the exit code of a difference, and a report as of one.
func (f *copyFlags) unequal(cmd *cobra.Command, o outcome, begun time.Time, why error) error {
	if !f.json {
		return why
	}
	o.Equal = new(bool)
	return errors.Join(why, f.report(cmd, &o, begun, false))
}

// report prints the outcome, on stderr when stdout carries data.
func (f *copyFlags) report(cmd *cobra.Command, o *outcome, begun time.Time, toStderr bool) error {
	o.finish(begun)
	o.URL = connflags.Names(o.URL)
	if f.quiet && !f.json {
		return nil
	}
	w := cmd.OutOrStdout()
	if toStderr {
		w = cmd.ErrOrStderr()
	}
	return o.print(w, f.json)
}

// writeCommand builds the command that copies a file or standard input to a volume.
func writeCommand() *cobra.Command {
	f := &copyFlags{}
	cmd := &cobra.Command{
		Use:   "write URL [FILE]",
		Short: "Copy a file to a volume",
		Long: `Copy FILE or (without FILE, or with -) standard input to a volume. Success means
that everything has been written and flushed: it survives a power failure at
the target.`,
		Example: `  iser-initiator write iser://127.0.0.1/iqn.2026-11.softiser:demo/0 disk.img --sparse
  zcat backup.gz | iser-initiator write iser://127.0.0.1/iqn.2026-11.softiser:demo/0 --offset 1GiB`,
		Args: cobra.RangeArgs(1, 2),
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.sparse, "sparse", false, "write zeroes as such (WRITE SAME, deallocated where the volume permits)")
	cmd.Flags().BoolVar(&f.pad, "pad", false, "fill the last block with zeroes when the input ends inside it")
	cmd.Flags().BoolVar(&f.fua, "fua", false, "make each write durable by itself (force unit access)")
	cmd.Flags().BoolVar(&f.flush, "flush", true, "flush at the end")
	cmd.RunE = f.write
	return cmd
}

// write is the command.
func (f *copyFlags) write(cmd *cobra.Command, a []string) error {
	in, err := openInput(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer in.Close()
	s, err := f.open(cmd, a[0])
	if err != nil {
		return err
	}
	defer s.lun.Close()
	n, total := in.length, s.length
	if n >= 0 { // refuse before anything is written
		if err := f.fits(s, a[1], n); err != nil {
			return err
		}
		if total < 0 {
			total = n
		}
	}
	s.prog = startProgress("written", total, !f.quiet && !f.json)
	defer s.prog.stop()
	begun := time.Now()
	if err := s.write(cmd.Context(), s.counted(in)); err != nil {
		return err
	}
	if f.flush {
		if err := s.lun.Do(cmd.Context(), &blockio.Request{Op: blockio.OpFlush}); err != nil {
			return fmt.Errorf("everything is written, but the flush failed, so that a power failure at the target may undo it; write it again: %w", err)
		}
	}
	s.prog.stop()
	o := s.outcome("write", a[0])
	o.Flushed = f.flush
	return f.report(cmd, &o, begun, false)
}

// fits says why a file of n bytes is not what is to be written to the range of s.
func (f *copyFlags) fits(s *stream, name string, n int64) error {
	info := s.lun.Info()
	bs := int64(info.BlockSize)
	switch room := info.Size - s.off; {
	case s.length >= 0:
		if n < s.length && (!f.pad || (n+bs-1)/bs*bs < s.length) {
			return fmt.Errorf("%s is %d bytes long, less than --length %d", name, n, int64(f.length))
		}
	case n%bs != 0 && !f.pad:
		return usage("%s is %d bytes long, which is not a multiple of the volume's block size, %d; --pad fills the last block up with zeroes", name, n, bs)
	case n > room:
		return fmt.Errorf("%s is longer (%d bytes) than the volume from %d on (%d bytes); --length says how much to write", name, n, s.off, room)
	}
	return nil
}

// verifyCommand builds the command that compares a volume with a file.
func verifyCommand() *cobra.Command {
	f := &copyFlags{}
	cmd := &cobra.Command{
		Use:   "verify URL [FILE]",
		Short: "Compare a volume with a file",
		Long: `Compare FILE or (without FILE, or with -) standard input with a volume, and say
where the first difference is. Without --length the length of FILE counts.`,
		Example: `  iser-initiator verify iser://127.0.0.1/iqn.2026-11.softiser:demo/0 disk.img
  iser-initiator verify URL disk.img --json || echo "exit code $?: 3 means different"`,
		Args: cobra.RangeArgs(1, 2),
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.pad, "pad", false, "treat the file as filled with zeroes to the end of its last block")
	cmd.RunE = f.verify
	return cmd
}

// padded is how much is to be compared with a file of n bytes: whole blocks.
func (f *copyFlags) padded(s *stream, name string, n int64) (int64, error) {
	bs := int64(s.lun.Info().BlockSize)
	over := n % bs
	switch {
	case over == 0:
		return n, nil
	case !f.pad:
		return 0, usage("%s is %d bytes long, which is not a multiple of the volume's block size, %d; --pad treats it as filled with zeroes", name, n, bs)
	}
	return n + bs - over, nil
}

// verify is the command.
func (f *copyFlags) verify(cmd *cobra.Command, a []string) error {
	in, err := openInput(cmd.Context(), a)
	if err != nil {
		return err
	}
	defer in.Close()
	s, err := f.open(cmd, a[0])
	if err != nil {
		return err
	}
	defer s.lun.Close()
	n, room := in.length, s.lun.Info().Size-s.off
	switch {
	case s.length >= 0:
	case n < 0:
		s.length = room
	default:
		if s.length, err = f.padded(s, a[1], n); err != nil {
			return err
		}
		if s.length > room {
			longer := &codedError{exitDiffer, fmt.Errorf("%s is longer (%d bytes) than the volume from %d on (%d bytes)", a[1], n, s.off, room)}
			return f.unequal(cmd, s.outcome("verify", a[0]), time.Now(), longer)
		}
	}
	s.prog = startProgress("verified", s.length, !f.quiet && !f.json)
	defer s.prog.stop()
	begun := time.Now()
	at, err := s.compare(cmd.Context(), s.counted(in))
	left := false
	if err == nil && f.length < 0 && n < 0 { // how long the input is was not known before
		left, err = more(in)
	}
	s.prog.stop()
	if left {
		longer := &codedError{exitDiffer, fmt.Errorf("the input is longer than the volume from %d on (%d bytes), which holds the same as it begins with; --length says how much to compare", s.off, s.length)}
		return f.unequal(cmd, s.outcome("verify", a[0]), begun, longer)
	}
	if err != nil && !errors.Is(err, errDiffer) {
		return err
	}
	o := s.outcome("verify", a[0])
	equal := err == nil
	o.Equal = &equal
	if !equal {
		o.FirstDiff = &at
		if !f.json {
			return &codedError{exitDiffer, fmt.Errorf("the volume differs from %s, first at byte %d of the volume", inputName(a), at)}
		}
	}
	if err := f.report(cmd, &o, begun, false); err != nil || equal {
		return err
	}
	return &codedError{exitDiffer, errReported}
}
