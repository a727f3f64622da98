package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"softiser/internal/durable"
	"softiser/internal/objects"
)

// What --input and --output name: files, or objects of a store, s3://BUCKET/KEY. They are those
// of the process that was called, even where a running target does the work.

// untilDone ends a transfer by its next read or write once ctx is done.
type untilDone struct {
	ctx context.Context //nolint:containedctx // of the command that transfers
	io.Reader
	io.Writer
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, fmt.Errorf("interrupted: %w", err)
	}
	n, err := u.Reader.Read(p)
	if err == io.ErrUnexpectedEOF { // of a request whose client has gone: not io.ReadFull's, for an input that has ended
		err = fmt.Errorf("the input breaks off: %w", err)
	}
	return n, err
}

func (u untilDone) Write(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, fmt.Errorf("interrupted: %w", err)
	}
	return u.Writer.Write(p)
}

func openInput(ctx context.Context, name string) (io.ReadCloser, error) {
	if objects.Is(name) {
		r, err := objects.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		return &input{r, name}, nil
	}
	return os.Open(name)
}

// input is an object that is read.
type input struct {
	io.ReadCloser
	name string
}

// Read names the object in what goes wrong. A body that breaks off is io.ErrUnexpectedEOF below, which
// must not look like io.ReadFull's own, for an input that has ended.
func (i *input) Read(p []byte) (int, error) {
	n, err := i.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%s: %w", i.name, err)
	}
	return n, err
}

// output is made by the first write, and takes the place of what has its name when it is whole. It
// has to be ended.
type output struct {
	ctx    context.Context //nolint:containedctx // of the command that writes
	name   string
	file   *durable.Replacement
	object *objects.Writer
}

func (o *output) Write(p []byte) (n int, err error) {
	switch {
	case o.object != nil:
		return o.object.Write(p)
	case o.file != nil:
		return o.file.Write(p)
	case objects.Is(o.name):
		o.object, err = objects.Create(o.ctx, o.name)
	default:
		o.file, err = durable.Replace(o.name)
	}
	if err != nil {
		return 0, err
	}
	return o.Write(p)
}

// end makes the output last, as what it is a copy of may be removed next, and returns err or what
// went wrong at the end. With an error what had the name stays.
func (o *output) end(err error) error {
	switch {
	case o.object != nil:
		return o.object.End(err)
	case o.file == nil:
	case err == nil:
		return o.file.Keep(true)
	default:
		o.file.Discard()
	}
	return err
}
