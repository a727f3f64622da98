package initiator

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// Identity is what a LUN says it is.
type Identity struct {
	Vendor, Product, Revision string
	Serial                    string // VPD page 80h
	DeviceType                byte   // 0: direct access block device
	Pages                     []byte // VPD pages that it has
	// Designators of the logical unit (VPD page 83h), best first: "naa.6…",
	// "eui.…", "t10.…".
	Designators []string

	epoch [16]byte // of the target's cache; see cache
}

// Name is the best name of the volume that the target gives.
func (id *Identity) Name() string {
	switch {
	case len(id.Designators) > 0:
		return id.Designators[0]
	case id.Serial != "":
		return "serial " + id.Serial
	}
	return strings.TrimSpace(id.Vendor + " " + id.Product)
}

// same reports whether two looks were at the same volume, as far as it says.
func (id *Identity) same(o *Identity) bool {
	if len(id.Designators) > 0 && len(o.Designators) > 0 {
		return id.Designators[0] == o.Designators[0]
	}
	return id.Serial == o.Serial && id.Vendor == o.Vendor && id.Product == o.Product
}

// lookup asks a logical unit about itself, whether it is open or not. Its commands go ahead
// of the queue, in slots that are kept for them, and are repeated after unit attentions; when
// the connection is lost they fail with ErrSessionLost. It has no state and takes no lock.
type lookup struct {
	s    *Session
	wire uint64 // the LUN, as in a PDU
}

// command runs one command and returns how many bytes came.
func (u lookup) command(ctx context.Context, cdb, in []byte) (int, error) {
	r := stateOf(&Request{Op: OpCDB, CDB: cdb, Buf: in, DataIn: true})
	r.ctl = true
	r.lun, r.geo = &LUN{wire: u.wire}, &geometry{}
	r.single()
	done := make(chan struct{})
	r.Done = func(*Request) { close(done) }
	u.s.submit(r)
	select {
	case <-done:
	case <-ctx.Done():
		u.s.abandon(r, context.Cause(ctx))
		<-done
	}
	return len(in) - int(r.Residual), r.Err
}

// vpd reads one VPD page and returns what follows its header.
func (u lookup) vpd(ctx context.Context, page byte) ([]byte, error) {
	buf := make([]byte, 1024)
	n, err := u.command(ctx, spc.AppendInquiryVPD(nil, page, uint16(len(buf))), buf)
	if err != nil {
		return nil, err
	}
	return spc.VPDPayload(buf[:n], page)
}

// identify looks at who a LUN is.
func (u lookup) identify(ctx context.Context) (Identity, error) {
	var id Identity
	buf := make([]byte, 96)
	n, err := u.command(ctx, spc.AppendInquiry(nil, uint16(len(buf))), buf)
	if err != nil {
		return id, err
	}
	q, err := spc.ParseInquiryData(buf[:n])
	if err != nil {
		return id, err
	}
	if q.Qualifier != 0 {
		return id, ErrNoLUN
	}
	id.Vendor, id.Product, id.Revision = strings.TrimSpace(q.Vendor), strings.TrimSpace(q.Product), strings.TrimSpace(q.Revision)
	id.DeviceType, id.epoch = q.Type, q.Epoch
	if id.Pages, err = u.vpd(ctx, spc.VPDSupported); err != nil {
		if passes(err) {
			return id, err
		}
		return id, nil // an old device: nothing more to learn
	}
	if id.has(spc.VPDSerial) {
		p, err := u.vpd(ctx, spc.VPDSerial)
		if passes(err) {
			return id, err
		}
		id.Serial = strings.TrimSpace(string(bytes.Trim(p, "\x00")))
	}
	if id.has(spc.VPDIdentification) {
		p, err := u.vpd(ctx, spc.VPDIdentification)
		if passes(err) {
			return id, err
		}
		ds, _ := spc.ParseDesignators(p) // those before a broken one still count
		id.Designators = designators(ds)
	}
	return id, nil
}

// lostConnection reports an error that says nothing about the LUN.
func lostConnection(err error) bool {
	return errors.Is(err, ErrSessionLost) || errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// passes reports an error that says nothing about what the LUN is or has: another time it may
// answer. Without this a volume of which nothing could be learnt would be taken for another one.
func passes(err error) bool {
	if se, ok := errors.AsType[*SenseError](err); ok {
		switch se.Status {
		case spc.StatusBusy, spc.StatusTaskSetFull, spc.StatusTaskAborted:
			return true // a reservation is none of these: who cannot look has to be able to preempt
		case spc.StatusCheckCondition:
			if k := se.Sense.Key; k == spc.KeyNotReady || k == spc.KeyUnitAttention || k == spc.KeyAborted {
				return true
			}
		}
	}
	return lostConnection(err) || errors.Is(err, ErrTimeout)
}

func (id *Identity) has(page byte) bool { return bytes.IndexByte(id.Pages, page) >= 0 }

// designators formats the names of the logical unit, the best first.
func designators(ds []spc.Designator) []string {
	var names []string
	// Of several NAA names the registered extended one (6) is worth most, a
	// locally assigned one (3) least.
	slices.SortStableFunc(ds, func(a, b spc.Designator) int { return naaRank(b) - naaRank(a) })
	for _, typ := range []byte{spc.DesignatorNAA, spc.DesignatorEUI64, spc.DesignatorName, spc.DesignatorVendor} {
		for _, d := range ds {
			if d.Association != spc.AssocLU || d.Type != typ {
				continue
			}
			text := strings.TrimRight(string(d.ID), "\x00 ")
			switch typ {
			case spc.DesignatorNAA:
				text = "naa." + hex.EncodeToString(d.ID)
			case spc.DesignatorEUI64:
				text = "eui." + hex.EncodeToString(d.ID)
			case spc.DesignatorVendor:
				text = "t10." + text
			}
			names = append(names, text)
		}
	}
	return names
}

func naaRank(d spc.Designator) int {
	if d.Type != spc.DesignatorNAA || len(d.ID) == 0 {
		return 0
	}
	return map[byte]int{6: 4, 5: 3, 2: 2, 3: 1}[d.ID[0]>>4]
}

// measure finds out what a LUN can do.
func (u lookup) measure(ctx context.Context, id *Identity) (*geometry, error) {
	if id.DeviceType != 0 {
		return nil, fmt.Errorf("it is not a block device (peripheral device type %#02x)", id.DeviceType)
	}
	cap, err := u.capacity(ctx)
	if err != nil {
		return nil, err
	}
	bs := int64(cap.BlockSize)
	if bs < 512 || bs > 64<<10 || bs&(bs-1) != 0 || cap.Blocks == 0 || cap.Blocks > uint64(1<<62/bs) {
		return nil, fmt.Errorf("the target says %d blocks of %d bytes, which no device has", cap.Blocks, bs)
	}
	var lim spc.BlockLimits
	var dev spc.BlockDevice
	var prov spc.Provisioning
	if p, ok, err := u.page(ctx, id, spc.VPDBlockLimits); err != nil {
		return nil, err
	} else if ok {
		lim, _ = spc.ParseBlockLimits(p)
	}
	if p, ok, err := u.page(ctx, id, spc.VPDBlockDevice); err != nil {
		return nil, err
	} else if ok {
		dev, _ = spc.ParseBlockDevice(p)
	}
	if p, ok, err := u.page(ctx, id, spc.VPDProvisioning); err != nil {
		return nil, err
	} else if ok {
		prov, _ = spc.ParseProvisioning(p)
	}
	writeCache, readOnly, fua, err := u.modes(ctx)
	if err != nil {
		return nil, err
	}
	g := &geometry{info: blockdev.Info{
		Size: int64(cap.Blocks) * bs, BlockSize: int(bs), PhysBlockSize: int(bs) << cap.PhysExponent,
		ReadOnly: readOnly, WriteCache: writeCache, Thin: cap.Provisioned || prov.Type == 2,
		ZeroesOnTrim: cap.ReadZeroes || prov.ReadZeroes, Rotational: dev.RotationRate > 1,
		Backend: u.s.cfg.Transport.String(), ID: id.Name(),
	}}
	g.fua = fua
	g.limit(int64(u.s.cfg.MaxTransfer), &cap, &lim, &prov)
	return g, nil
}

// page reads a VPD page that the LUN says it has.
func (u lookup) page(ctx context.Context, id *Identity, page byte) ([]byte, bool, error) {
	if !id.has(page) {
		return nil, false, nil
	}
	p, err := u.vpd(ctx, page)
	if passes(err) {
		return nil, false, err
	}
	return p, err == nil, nil
}

// limit derives the limits of commands from what the LUN says; most is the longest READ or
// WRITE that is wanted, bytes.
func (g *geometry) limit(most int64, cap *spc.Capacity, lim *spc.BlockLimits, prov *spc.Provisioning) {
	bs := int64(g.info.BlockSize)
	whole := func(n int64) int64 { return max(n/bs, 1) * bs }
	bound := func(def int64, blocks uint64) int64 {
		if blocks > 0 && blocks < uint64(def/bs) {
			return int64(blocks) * bs
		}
		return whole(def)
	}
	g.maxIO = bound(most, uint64(lim.MaxTransfer))
	g.maxVerify = bound(defaultMaxVerify, uint64(lim.MaxTransfer))
	g.maxCAW = int64(lim.MaxCompareAndWrite) * bs
	if lim.MaxWriteSame > 0 || prov.WriteSame16 {
		g.maxSame = bound(defaultMaxSame, lim.MaxWriteSame)
	}
	g.sameUnmap = prov.WriteSame16 && g.info.ZeroesOnTrim
	if cap.Provisioned && prov.Unmap && lim.MaxUnmapBlocks > 0 && lim.MaxUnmapDescriptors > 0 {
		g.maxUnmap = bound(defaultMaxUnmap, uint64(lim.MaxUnmapBlocks))
	}
	g.trimSame = g.maxUnmap == 0 && cap.Provisioned && prov.WriteSame16
	g.info.Discard = g.maxUnmap > 0 || g.trimSame
	g.info.DiscardAlign = int(lim.UnmapGranularity) * int(bs)
}

// Limits returns how much one command covers; longer requests are split.
func (l *LUN) Limits() blockio.Limits {
	g := l.geo.Load()
	return blockio.Limits{MaxTransfer: g.maxIO, MaxUnmap: g.maxUnmap, MaxWriteSame: g.maxSame, MaxCompareAndWrite: g.maxCAW}
}

// capacity asks with READ CAPACITY(16), and (10) where that is not known.
func (u lookup) capacity(ctx context.Context) (spc.Capacity, error) {
	buf := make([]byte, spc.Capacity16Len)
	n, err := u.command(ctx, spc.AppendReadCapacity16(nil, uint32(len(buf))), buf)
	if err == nil {
		return spc.ParseCapacity16(buf[:n])
	}
	var se *spc.SenseError
	if !errors.As(err, &se) || se.Sense.Key != spc.KeyIllegalRequest {
		return spc.Capacity{}, err
	}
	buf = buf[:spc.Capacity10Len]
	if n, err = u.command(ctx, spc.AppendReadCapacity10(nil), buf); err != nil {
		return spc.Capacity{}, err
	}
	c, ok, err := spc.ParseCapacity10(buf[:n])
	if err == nil && !ok {
		err = errors.New("the device is larger than READ CAPACITY(10) can tell, and the target has no READ CAPACITY(16)")
	}
	return c, err
}

// modes reads WCE of the caching page, the write protection and DPOFUA from MODE
// SENSE(6). A device without mode pages is taken to have a volatile cache and no
// FUA: a flush too many does no harm.
func (u lookup) modes(ctx context.Context) (writeCache, readOnly, fua bool, err error) {
	const caching, all = 0x08, 0x3f
	buf := make([]byte, 192)
	for _, page := range []byte{caching, all} {
		n, err := u.command(ctx, spc.AppendModeSense6(nil, true, 0, page, 0, byte(len(buf))), buf)
		if passes(err) {
			return false, false, false, err
		}
		if err != nil || n < 4 {
			continue
		}
		readOnly, fua = buf[2]&0x80 != 0, buf[2]&0x10 != 0
		end := min(n, int(buf[0])+1)
		for i := 4 + int(buf[3]); i+2 < end; i += 2 + int(buf[i+1]) {
			if buf[i]&0x3f == caching {
				return buf[i+2]&0x04 != 0, readOnly, fua, nil
			}
		}
	}
	return true, readOnly, fua, nil
}

// ReportLUNs lists the LUNs of the target.
func (s *Session) ReportLUNs(ctx context.Context) ([]uint64, error) {
	buf := make([]byte, 16<<10)
	n, err := lookup{s, 0}.command(ctx, spc.AppendReportLUNs(nil, 0, uint32(len(buf))), buf)
	if err != nil {
		return nil, fmt.Errorf("initiator: %s: REPORT LUNS: %w", s.cfg.URL(), err)
	}
	wires, _, err := spc.ParseLUNList(buf[:n])
	if err != nil {
		return nil, fmt.Errorf("initiator: %s: REPORT LUNS: %w", s.cfg.URL(), err)
	}
	var luns []uint64
	for _, w := range wires {
		if n, ok := iscsi.DecodeLUN(w); ok {
			luns = append(luns, uint64(n))
		}
	}
	slices.Sort(luns)
	return luns, nil
}
