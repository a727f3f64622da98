package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"softiser/blockdev"
	"softiser/internal/terminal"
	"softiser/internal/usage"
	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/lvm/stream"
	"softiser/lvm/thin"
	"softiser/lvm/vg"
)

// transfers are the commands that move what volumes hold.
type transfers struct{ *app }

func (a transfers) all() []*cobra.Command {
	return []*cobra.Command{a.diff(), a.export(), a.importCmd(), a.clone()}
}

func (a transfers) diff() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "diff VG/FROM VG/TO", Short: "List the ranges in which two volumes differ",
		Long: "Lists the byte ranges in which TO differs from FROM: two thin volumes of one pool, a classic\nsnapshot and its origin, or two snapshots of one origin. \"zero\" ranges read as zeroes in TO.", Args: cobra.ExactArgs(2)}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		g, from, err := a.lv(args[0])
		if err != nil {
			return err
		}
		to, err := a.another(g, args[1])
		if err != nil {
			return err
		}
		cs, err := g.Diff(cmd.Context(), from.Name, to.Name)
		if err != nil {
			return err
		}
		return a.printDiff(cs, asJSON)
	}
	return c
}

// another is a volume of group g, as the one that it is compared with.
func (a transfers) another(g *lvm.Group, arg string) (*meta.LV, error) {
	in, lv, err := a.lv(arg)
	if err != nil {
		return nil, err
	}
	if in != g {
		return nil, usage.Errorf("use a single volume group name (%q or %q)", g.Metadata().Name, in.Metadata().Name)
	}
	return lv, nil
}

// printDiff prints the ranges in which two volumes differ.
func (a transfers) printDiff(cs []thin.Change, asJSON bool) error {
	kind := func(data bool) string {
		if data {
			return "data"
		}
		return "zero"
	}
	if asJSON {
		type item struct {
			Offset int64  `json:"offset"`
			Length int64  `json:"length"`
			Type   string `json:"type"`
		}
		out := make([]item, 0, len(cs))
		for _, c := range cs {
			out = append(out, item{c.Off, c.Len, kind(c.Data)})
		}
		return json.NewEncoder(a.out).Encode(map[string]any{"changes": out})
	}
	fmt.Fprintf(a.out, "%16s %16s  type\n", "offset", "length")
	var total int64
	for _, c := range cs {
		fmt.Fprintf(a.out, "%16d %16d  %s\n", c.Off, c.Len, kind(c.Data))
		total += c.Len
	}
	fmt.Fprintf(a.out, "%s, %s\n", english.Plural(len(cs), "range", ""), display(uint64(total), 'h', true))
	return nil
}

// export writes a volume, or its difference from another one, to a file or pipe.
func (a transfers) export() *cobra.Command {
	var from, to string
	var resume int64
	var raw bool
	c := &cobra.Command{Use: "export [--from VG/SNAPSHOT] VG/LV", Short: "Write a volume, or what has changed, as a stream", Args: cobra.ExactArgs(1)}
	c.Flags().StringVar(&from, "from", "", "only what differs from this volume")
	c.Flags().StringVar(&to, "output", "-", "file or object (s3://BUCKET/KEY) to write; - is standard output, which may be a terminal only where it is asked for so")
	c.Flags().BoolVar(&raw, "raw", false, "write the plain content of the volume instead of a stream")
	c.Flags().Int64Var(&resume, "resume", 0, "leave out what lies before this offset")
	c.RunE = func(cmd *cobra.Command, args []string) (err error) {
		g, lv, err := a.lv(args[0])
		if err != nil {
			return err
		}
		if err := lvm.Whole(g.Metadata(), lv); err != nil {
			return err
		}
		v, err := g.Volume(lv.Name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		if raw && from != "" {
			return usage.Errorf("--raw writes whole volumes; leave --from out")
		}
		if size := v.Info().Size; resume < 0 || resume > size {
			return fmt.Errorf("--resume %d: %s has %d bytes", resume, args[0], size)
		}
		h := stream.Header{Volume: args[0], ID: lv.ID.String(), Size: v.Info().Size, Start: resume}
		var es []stream.Extent
		if from == "" {
			es, err = v.Extents(0, v.Info().Size)
		} else {
			h.Base, es, err = a.changed(cmd.Context(), g, from, lv)
		}
		if err != nil {
			return err
		}
		w := a.out
		if to != "-" {
			if err := vg.CheckOutput(to, g.Metadata().Name, disksOf(g)); err != nil {
				return err
			}
			o := &output{ctx: cmd.Context(), name: to}
			defer func() { err = o.end(err) }()
			w = o
		}
		w = untilDone{ctx: cmd.Context(), Writer: w}
		if raw {
			_, err := io.Copy(w, io.NewSectionReader(v, resume, h.Size-resume))
			return err
		}
		return stream.Export(w, v, h, es, nil)
	}
	return c
}

// changed is what differs between the volume from, whose UUID is base, and lv.
func (a transfers) changed(ctx context.Context, g *lvm.Group, from string, lv *meta.LV) (base string, es []stream.Extent, err error) {
	b, err := a.another(g, from)
	if err == nil {
		err = lvm.Whole(g.Metadata(), b)
	}
	if err != nil {
		return "", nil, err
	}
	cs, err := g.Diff(ctx, b.Name, lv.Name)
	for _, c := range cs {
		es = append(es, stream.Extent{Off: c.Off, Len: c.Len, Data: c.Data})
	}
	return b.ID.String(), es, err
}

// disksOf are the paths of a group's disks.
func disksOf(g *lvm.Group) (paths []string) {
	for _, d := range g.View().Disks {
		paths = append(paths, d.Path)
	}
	return paths
}

// checkOutput refuses an output that is a disk of the group of a running target which the first argument of a
// command is about: the target does not know what its answer is written to.
func (a *app) checkOutput(cmd *cobra.Command, name string) error {
	group, _, err := splitLV(cmd.Flags().Arg(0))
	if err != nil || a.env.Disks == nil {
		return nil //nolint:nilerr // who runs the command says what is wrong with the name
	}
	disks, err := a.env.Disks(cmd.Context(), group)
	if err != nil {
		return err
	}
	return vg.CheckOutput(name, group, disks)
}

// notToTerminal keeps what export writes off a terminal, unless it is asked for there.
func notToTerminal(cmd *cobra.Command) error {
	if f := cmd.Flags().Lookup("output"); f != nil && !f.Changed && usage.IsTerminal(cmd.OutOrStdout()) {
		return usage.Errorf("standard output is a terminal: name a file with --output, pass the data on through a pipe, or say --output - to have it on the screen")
	}
	return nil
}

const standardInput = "standard input"

// nameInput gives the error of a target that has had a file, or an object, as its standard input the name of that.
func nameInput(err error, input string) error {
	if err == nil {
		return nil
	}
	for _, before := range []string{"", "importing "} {
		if rest, ok := strings.CutPrefix(err.Error(), before+standardInput+": "); ok {
			return fmt.Errorf("%s%s: %s", before, input, rest)
		}
	}
	return err
}

// takeInput has what import reads from standard input end with the command, which a terminal or a pipe whose writer is at
// rest would hold for ever, and takes a terminal only where it is asked for. end lets it go.
func (a *app) takeInput(cmd *cobra.Command) (end func() error, err error) {
	f := cmd.Flags().Lookup("input")
	file, is := a.in.(*os.File)
	switch {
	case f == nil || f.Value.String() != "-" || !is:
		return func() error { return nil }, nil
	case !f.Changed && terminal.Is(file):
		return nil, usage.Errorf("standard input is a terminal: name a file with --input, send the data through a pipe, or say --input - to enter it by hand")
	}
	r, err := terminal.NewReader(cmd.Context(), file)
	if err != nil {
		return nil, err
	}
	a.in = r
	return r.Close, nil
}

// importCmd reads what export has written.
func (a transfers) importCmd() *cobra.Command {
	var input string
	var raw bool
	c := &cobra.Command{Use: "import VG/LV", Short: "Read a stream into a volume, which is created if it does not exist", Args: cobra.ExactArgs(1)}
	c.Flags().StringVar(&input, "input", "-", "file or object (s3://BUCKET/KEY) to read; - is standard input")
	c.Flags().BoolVar(&raw, "raw", false, "the input is plain content for a volume that exists")
	c.RunE = func(cmd *cobra.Command, args []string) (err error) {
		r := a.in
		if input != "-" {
			f, err := openInput(cmd.Context(), input)
			if err != nil {
				return err
			}
			defer f.Close()
			r = f
		}
		r = untilDone{ctx: cmd.Context(), Reader: r}
		if raw {
			return a.importRaw(cmd.Context(), args[0], r)
		}
		if input == "-" {
			input = standardInput
		}
		s, err := stream.NewReader(r)
		if err != nil {
			return fmt.Errorf("%s: %w", input, err)
		}
		group, name, err := splitLV(args[0])
		if err != nil {
			return err
		}
		g, err := a.group(group)
		if err != nil {
			return err
		}
		return a.importInto(cmd.Context(), g, name, s, input)
	}
	return c
}

// notAPart refuses what is not a user's volume, such as the data of a thin pool.
func notAPart(g *lvm.Group, lv *meta.LV) error {
	if v := g.Metadata(); !v.Shown(lv) {
		return fmt.Errorf("cannot import into %s/%s: it is a part of another volume", v.Name, lv.Name)
	}
	return nil
}

// importRaw overwrites the start of a volume.
func (a transfers) importRaw(ctx context.Context, arg string, r io.Reader) (err error) {
	g, lv, err := a.lv(arg)
	if err != nil {
		return err
	}
	if err := notAPart(g, lv); err != nil {
		return err
	}
	if err := a.ask(ctx, "really overwrite %s?", arg); err != nil {
		return err
	}
	v, err := g.Volume(lv.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	block := int64(v.Info().BlockSize)
	buf := make([]byte, 1<<20)
	for off := int64(0); ; {
		n, err := io.ReadFull(r, buf)
		end := err == io.EOF || err == io.ErrUnexpectedEOF // ReadFull's own, not those that an input wraps
		if err != nil && !end {
			return fmt.Errorf("%w; what came before offset %d has been written", err, off)
		}
		if n > 0 {
			switch size := v.Info().Size; {
			case off+int64(n) > size:
				return fmt.Errorf("the input is longer than %s, which has %d bytes; what came before offset %d has been written", arg, size, off)
			case int64(n)%block != 0:
				return fmt.Errorf("the input ends within a block of %d bytes, after %d; what came before offset %d has been written", block, off+int64(n), off)
			}
			if _, err := v.WriteAt(buf[:n], off); err != nil {
				return fmt.Errorf("writing %s at offset %d: %w", arg, off, err)
			}
			off += int64(n)
		}
		if end {
			return v.Flush()
		}
	}
}

// importInto applies stream s to volume name of g. A full stream creates it; an
// incremental one needs the volume that it was made against. input is where s comes from, for people.
func (a transfers) importInto(ctx context.Context, g *lvm.Group, name string, s *stream.Reader, input string) (err error) {
	h := s.Header
	for _, id := range []string{h.ID, h.Base} {
		if _, err := meta.ParseUUID(id); err != nil && id != "" {
			return fmt.Errorf("the stream names a volume by %q, which is no UUID: it was not made by export", id)
		}
	}
	lv := g.Metadata().LV(name)
	switch {
	case lv == nil && h.Base != "":
		return fmt.Errorf("%s does not exist, but the stream is relative to %s: import the full volume first", name, h.Base)
	case lv == nil && h.Start > 0:
		return fmt.Errorf("%s does not exist, but the stream begins at offset %d: import the full volume first", name, h.Start)
	case lv == nil:
		es := int64(g.Metadata().ExtentSize) * 512
		if err := g.Create(lvm.CreateOptions{Name: name, Extents: uint64((s.Header.Size + es - 1) / es)}, a.why()); err != nil {
			return err
		}
	default:
		err := notAPart(g, lv)
		if err == nil {
			err = a.mayImport(ctx, lv, s)
		}
		if err != nil {
			return err
		}
	}
	v, err := g.Volume(name)
	if err != nil {
		return err
	}
	if is := v.Info().Size; is < h.Size {
		return errors.Join(fmt.Errorf("%s has %d bytes, the volume in the stream has %d: extend it first", name, is, h.Size), v.Close())
	}
	if v.Info().ReadOnly {
		return errors.Join(fmt.Errorf("%s: %w", name, blockdev.ErrReadOnly), v.Close())
	}
	if err := v.Fills(); err != nil {
		return errors.Join(err, v.Close())
	}
	// From the first write on it is neither the old nor the new content, even if
	// the power fails.
	begun := partial(h, h.Start)
	if err := a.tag(g, name, begun); err != nil {
		return errors.Join(err, v.Close())
	}
	next, err := s.Import(v, false, nil)
	if err != nil {
		tagErr := a.retag(g, name, begun, partial(h, next))
		return errors.Join(fmt.Errorf("importing %s: %w; everything before offset %d is done: go on with `export --resume %d`", input, err, next, next), v.Close(), tagErr)
	}
	if err := v.Close(); err != nil {
		return err
	}
	if err := a.retag(g, name, begun, lvm.ImportedTag+s.Header.ID); err != nil {
		return err
	}
	a.say("Volume %q imported into %q.", s.Header.Volume, name)
	return nil
}

// partial is the tag of a volume that h is imported into, and that has what lies
// before the offset.
func partial(h stream.Header, done int64) string {
	return fmt.Sprintf("%s%d", importing(h), done)
}

func importing(h stream.Header) string { return lvm.ImportingTag + h.ID + "." + h.Base + "." }

// mayImport refuses to mix streams.
func (a transfers) mayImport(ctx context.Context, lv *meta.LV, s *stream.Reader) error {
	h := s.Header
	is := func(tag string) bool { return slices.Contains(lv.Tags, tag) }
	done := int64(-1) // how far an earlier import of this stream came
	for _, t := range lv.Tags {
		if off, ok := strings.CutPrefix(t, importing(h)); ok {
			if n, err := strconv.ParseInt(off, 10, 64); err == nil {
				done = n
			}
		}
	}
	switch {
	case a.force > 0:
		return nil
	case done >= h.Start:
		return nil // goes on where the earlier import of this stream ended, or before that
	case done >= 0:
		return fmt.Errorf("%s is known to have what lies before offset %d, the stream begins at %d: use `export --resume %d`", lv.Name, done, h.Start, done)
	case h.Start > 0:
		return fmt.Errorf("%s was not left by an import of this stream: start again without --resume", lv.Name)
	case h.Base != "" && is(lvm.ImportedTag+h.Base):
		return nil
	case h.Base != "":
		return fmt.Errorf("%s does not hold %s, which the stream is relative to, or was written since (--force overrides)", lv.Name, h.Base)
	}
	return a.ask(ctx, "%s exists: really overwrite it?", lv.Name)
}

func (a transfers) tag(g *lvm.Group, name, tag string) error {
	return g.Change(name, func(lv *meta.LV) error {
		for _, t := range slices.Clone(lv.Tags) {
			if strings.HasPrefix(t, lvm.ImportedTag) || strings.HasPrefix(t, lvm.ImportingTag) {
				lv.SetTag(t, false)
			}
		}
		lv.SetTag(tag, true)
		return nil
	}, a.why())
}

// retag has tag, if it is not empty, take the place of was, which is there unless somebody else has
// written to the volume since.
func (a transfers) retag(g *lvm.Group, name, was, tag string) error {
	return g.Change(name, func(lv *meta.LV) error {
		if !slices.Contains(lv.Tags, was) {
			return fmt.Errorf("%s has been written by somebody else meanwhile: it holds a mixture", name)
		}
		lv.SetTag(was, false)
		if tag != "" {
			lv.SetTag(tag, true)
		}
		return nil
	}, a.why())
}

// clone copies a volume within its group.
func (a transfers) clone() *cobra.Command {
	c := &cobra.Command{Use: "clone VG/LV NAME", Short: "Copy a volume into a new one; a thin volume is cloned without copying", Args: cobra.ExactArgs(2)}
	c.RunE = func(cmd *cobra.Command, args []string) (err error) {
		g, lv, err := a.lv(args[0])
		if err != nil {
			return err
		}
		name, err := nameIn(g.Metadata().Name, args[1])
		if err == nil {
			err = lvm.Whole(g.Metadata(), lv)
		}
		if err != nil {
			return err
		}
		if len(lv.Segments) == 1 && lv.Segments[0].Type == meta.Thin {
			err = g.CreateThin(cmd.Context(), lvm.ThinOptions{Name: name, Origin: lv.Name, NoSkip: true}, a.why())
		} else {
			err = a.copyVolume(cmd.Context(), g, lv, name)
		}
		if err != nil {
			return err
		}
		a.say("Logical volume %q created.", name)
		return nil
	}
	return c
}

// copyVolume makes a full copy of lv, called name, in the same group. Until it is whole, it has the
// tag of a volume that is being imported.
func (a transfers) copyVolume(ctx context.Context, g *lvm.Group, lv *meta.LV, name string) (err error) {
	src, err := g.Volume(lv.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	size := src.Info().Size
	extents, err := src.Extents(0, size)
	if err != nil {
		return err
	}
	h := stream.Header{ID: lv.ID.String(), Size: size}
	es := int64(g.Metadata().ExtentSize) * 512
	if err := g.Create(lvm.CreateOptions{Name: name, Extents: uint64(size / es), Tags: []string{partial(h, 0)}}, a.why()); err != nil {
		return err
	}
	dst, err := g.Volume(name)
	if err != nil {
		return err
	}
	if err := dst.Fills(); err != nil {
		return errors.Join(err, dst.Close())
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(stream.Export(untilDone{ctx: ctx, Writer: pw}, src, h, extents, nil)) }()
	s, err := stream.NewReader(pr)
	if err == nil {
		_, err = s.Import(dst, false, nil)
	}
	pr.CloseWithError(blockdev.ErrClosed)
	if err = errors.Join(err, dst.Close()); err != nil {
		return fmt.Errorf("%w; %s holds a part of %s: remove it", err, name, lv.Name)
	}
	return a.retag(g, name, partial(h, 0), "")
}
