package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"softiser/initiator/blockio"
)

// negotiation is the fixed newstyle handshake of one connection.
//
//	S: NBDMAGIC IHAVEOPT flags
//	C: flags
//	C: IHAVEOPT option length data     S: reply(ies)      … repeated
//	C: GO or EXPORT_NAME               S: INFO…, ACK      → transmission
type negotiation struct {
	srv        *Server
	rw         io.ReadWriter
	noZeroes   bool
	structured bool
	allocation string // export for which base:allocation was selected
	hasAlloc   bool
}

// agreed is the result of a negotiation.
type agreed struct {
	export     *Export
	structured bool
	allocation bool
	kernel     bool // there was no handshake: the client is a device of the kernel's
	client     *blockio.Flusher
}

// handshakeTimeout bounds the whole negotiation: no client needs to think.
const handshakeTimeout = 30 * time.Second

var errAborted = errors.New("nbd: client ended the negotiation")

// run serves options until the client chooses an export.
func (g *negotiation) run() (a agreed, err error) {
	var p [18]byte
	be := binary.BigEndian
	be.PutUint64(p[0:], magicInit)
	be.PutUint64(p[8:], magicOption)
	be.PutUint16(p[16:], flagFixedNewstyle|flagNoZeroes)
	if _, err := g.rw.Write(p[:]); err != nil {
		return a, err
	}
	if _, err := io.ReadFull(g.rw, p[:4]); err != nil {
		return a, err
	}
	flags := be.Uint32(p[:])
	if flags&^(flagFixedNewstyle|flagNoZeroes) != 0 || flags&flagFixedNewstyle == 0 {
		return a, fmt.Errorf("nbd: client flags %#x: fixed newstyle is needed, and nothing unknown", flags)
	}
	g.noZeroes = flags&flagNoZeroes != 0
	for range maxOptions {
		if _, err := io.ReadFull(g.rw, p[:16]); err != nil {
			return a, err
		}
		if m := be.Uint64(p[:]); m != magicOption {
			return a, fmt.Errorf("nbd: option magic %#x", m)
		}
		opt, n := be.Uint32(p[8:]), be.Uint32(p[12:])
		if n > maxOptData {
			return a, fmt.Errorf("nbd: option %d of %d bytes: the limit is %d", opt, n, maxOptData)
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(g.rw, data); err != nil {
			return a, err
		}
		e, err := g.option(opt, data)
		if err != nil {
			return a, err
		}
		if e != nil {
			return agreed{export: e, structured: g.structured, allocation: g.hasAlloc && g.structured && g.allocation == e.Name,
				client: e.LUN.NewFlusher()}, nil
		}
	}
	return a, fmt.Errorf("nbd: more than %d options", maxOptions)
}

// option serves one option; an export means that transmission begins.
func (g *negotiation) option(opt uint32, data []byte) (*Export, error) {
	switch opt {
	case optExportName:
		return g.exportName(data)
	case optAbort:
		g.reply(opt, repAck, nil)
		return nil, errAborted
	case optList:
		return nil, g.list(opt, data)
	case optInfo, optGo:
		return g.info(opt, data)
	case optStructuredReply:
		if len(data) != 0 {
			return nil, g.fail(opt, repErrInvalid, "STRUCTURED_REPLY takes no data")
		}
		g.structured = true
		return nil, g.reply(opt, repAck, nil)
	case optListMeta, optSetMeta:
		return nil, g.meta(opt, data)
	case optStartTLS:
		return nil, g.fail(opt, repErrPolicy, "this server is local and has no TLS")
	}
	return nil, g.fail(opt, repErrUnsup, "option not supported")
}

// exportName is the old way to choose an export: there is no way to refuse but
// to hang up.
func (g *negotiation) exportName(name []byte) (*Export, error) {
	e := g.srv.export(string(name))
	if e == nil {
		return nil, fmt.Errorf("nbd: no export %q", name)
	}
	var p [10 + 124]byte
	binary.BigEndian.PutUint64(p[0:], uint64(e.LUN.Info().Size))
	binary.BigEndian.PutUint16(p[8:], uint16(g.flags(e)))
	n := 10
	if !g.noZeroes {
		n = len(p)
	}
	_, err := g.rw.Write(p[:n])
	return e, err
}

func (g *negotiation) list(opt uint32, data []byte) error {
	if len(data) != 0 {
		return g.fail(opt, repErrInvalid, "LIST takes no data")
	}
	for _, e := range g.srv.exports {
		p := binary.BigEndian.AppendUint32(nil, uint32(len(e.Name)))
		p = append(append(p, e.Name...), e.Description...)
		if err := g.reply(opt, repServer, p); err != nil {
			return err
		}
	}
	return g.reply(opt, repAck, nil)
}

// info serves INFO and GO: name length, name, count, information types.
func (g *negotiation) info(opt uint32, data []byte) (*Export, error) {
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 2 || len(rest)-2 != 2*int(binary.BigEndian.Uint16(rest)) {
		return nil, g.fail(opt, repErrInvalid, "malformed request for an export")
	}
	if len(name) > maxName {
		return nil, g.fail(opt, repErrTooBig, "export name too long")
	}
	e := g.srv.export(name)
	if e == nil {
		return nil, g.fail(opt, repErrUnknown, fmt.Sprintf("no export %q", name))
	}
	be := binary.BigEndian
	p := be.AppendUint16(nil, infoExport)
	p = be.AppendUint64(p, uint64(e.LUN.Info().Size))
	p = be.AppendUint16(p, uint16(g.flags(e)))
	if err := g.reply(opt, repInfo, p); err != nil {
		return nil, err
	}
	p = be.AppendUint16(nil, infoBlockSize)
	lo, preferred, hi := e.blockSizes()
	p = be.AppendUint32(be.AppendUint32(be.AppendUint32(p, lo), preferred), hi)
	if err := g.reply(opt, repInfo, p); err != nil {
		return nil, err
	}
	for types := rest[2:]; len(types) > 0; types = types[2:] {
		var text string
		switch t := be.Uint16(types); t {
		case infoName:
			text = e.Name
		case infoDescription:
			text = e.Description
		default:
			continue
		}
		if err := g.reply(opt, repInfo, append(be.AppendUint16(nil, be.Uint16(types)), text...)); err != nil {
			return nil, err
		}
	}
	if err := g.reply(opt, repAck, nil); err != nil {
		return nil, err
	}
	if opt == optInfo {
		return nil, nil
	}
	return e, nil
}

// flags: "do not fragment" exists only among structured replies.
func (g *negotiation) flags(e *Export) TransmissionFlags {
	f := e.Flags()
	if g.structured {
		f |= FlagSendDF
	}
	return f
}

// The one metadata context that is served, and its id in BLOCK_STATUS replies.
const (
	contextAllocation = "base:allocation"
	contextID         = 1
)

// meta serves LIST_META_CONTEXT and SET_META_CONTEXT: name, count, queries.
func (g *negotiation) meta(opt uint32, data []byte) error {
	if opt == optSetMeta {
		g.hasAlloc = false // what was chosen before counts no more, even if this fails
	}
	if !g.structured {
		return g.fail(opt, repErrInvalid, "negotiate structured replies first")
	}
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 4 {
		return g.fail(opt, repErrInvalid, "malformed request for metadata contexts")
	}
	count := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	e := g.srv.export(name)
	if e == nil {
		return g.fail(opt, repErrUnknown, fmt.Sprintf("no export %q", name))
	}
	found := opt == optListMeta && count == 0
	for range count {
		var q string
		if q, rest, ok = cutString(rest); !ok {
			return g.fail(opt, repErrInvalid, "malformed metadata query")
		}
		if q == contextAllocation || opt == optListMeta && q == "base:" {
			found = true
		}
	}
	if len(rest) != 0 {
		return g.fail(opt, repErrInvalid, "bytes behind the last metadata query")
	}
	if opt == optSetMeta {
		g.hasAlloc, g.allocation = found, e.Name // a query without a name means the default export
	}
	if found {
		id := uint32(contextID)
		if opt == optListMeta {
			id = 0 // in the answer to a list the id is reserved
		}
		p := append(binary.BigEndian.AppendUint32(nil, id), contextAllocation...)
		if err := g.reply(opt, repMetaContext, p); err != nil {
			return err
		}
	}
	return g.reply(opt, repAck, nil)
}

// cutString splits a length-prefixed string off p.
func cutString(p []byte) (s string, rest []byte, ok bool) {
	if len(p) < 4 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(p)
	p = p[4:]
	if uint64(n) > uint64(len(p)) {
		return "", nil, false
	}
	return string(p[:n]), p[n:], true
}

// reply sends one option reply.
func (g *negotiation) reply(opt, typ uint32, data []byte) error {
	be := binary.BigEndian
	p := be.AppendUint64(make([]byte, 0, 20+len(data)), magicOptReply)
	p = be.AppendUint32(be.AppendUint32(be.AppendUint32(p, opt), typ), uint32(len(data)))
	_, err := g.rw.Write(append(p, data...))
	return err
}

// fail refuses an option; the negotiation goes on.
func (g *negotiation) fail(opt, typ uint32, why string) error { return g.reply(opt, typ, []byte(why)) }
