package iscsi

// DataOut is the view of a SCSI Data-Out (RFC 7143 §11.7).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x05      |F| Reserved                                    |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN or Reserved                                               |
//	16| Initiator Task Tag                                            |
//	20| Target Transfer Tag or 0xffffffff                             |
//	24| Reserved                                                      |
//	28| ExpStatSN                                                     |
//	32| Reserved                                                      |
//	36| DataSN                                                        |
//	40| Buffer Offset                                                 |
//	44| Reserved                                                      |
//	  +---------------+---------------+---------------+---------------+
type DataOut struct{ *BHS }

// DataOut views b as a Data-Out.
func (b *BHS) DataOut() DataOut { return DataOut{b} }

// NewDataOut clears b and makes it a Data-Out with TTT reserved (unsolicited).
func (b *BHS) NewDataOut() DataOut {
	b.init(OpDataOut, 0)
	b.SetTTT(ReservedTag)
	return DataOut{b}
}

// DataSN returns the number of the PDU within its sequence.
func (d DataOut) DataSN() uint32 { return d.u32(36) }

// SetDataSN sets DataSN.
func (d DataOut) SetDataSN(v uint32) { d.put32(36, v) }

// Offset returns where the data belongs in the initiator's buffer, bytes.
func (d DataOut) Offset() uint32 { return d.u32(40) }

// SetOffset sets the buffer offset.
func (d DataOut) SetOffset(v uint32) { d.put32(40, v) }

// DataIn is the view of a SCSI Data-In (RFC 7143 §11.7).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x25      |F|A|0 0 0|O|U|S| Reserved      |Status or Rsvd |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN or Reserved                                               |
//	16| Initiator Task Tag                                            |
//	20| Target Transfer Tag or 0xffffffff                             |
//	24| StatSN or Reserved                                            |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	36| DataSN                                                        |
//	40| Buffer Offset                                                 |
//	44| Residual Count                                                |
//	  +---------------+---------------+---------------+---------------+
type DataIn struct{ *BHS }

// DataIn views b as a Data-In.
func (b *BHS) DataIn() DataIn { return DataIn{b} }

// NewDataIn clears b and makes it a Data-In with TTT reserved (no DataACK).
func (b *BHS) NewDataIn() DataIn {
	b.init(OpDataIn, 0)
	b.SetTTT(ReservedTag)
	return DataIn{b}
}

// Acknowledge reports the A bit: the target asks for a SNACK DataACK (ERL > 0).
func (d DataIn) Acknowledge() bool { return d.flag(0x40) }

// SetAcknowledge sets the A bit.
func (d DataIn) SetAcknowledge(on bool) { d.setFlag(1, 0x40, on) }

// HasStatus reports the S bit: Status, StatSN and Residual are valid.
func (d DataIn) HasStatus() bool { return d.flag(0x01) }

// SetHasStatus sets the S bit.
func (d DataIn) SetHasStatus(on bool) { d.setFlag(1, 0x01, on) }

// ResidualFlags returns the O and U bits.
func (d DataIn) ResidualFlags() byte { return d.BHS[1] & 0x06 }

// Status returns the SCSI status.
func (d DataIn) Status() uint8 { return d.BHS[3] }

// SetStatus sets the SCSI status.
func (d DataIn) SetStatus(v uint8) { d.BHS[3] = v }

// DataSN returns the number of the PDU within its command.
func (d DataIn) DataSN() uint32 { return d.u32(36) }

// SetDataSN sets DataSN.
func (d DataIn) SetDataSN(v uint32) { d.put32(36, v) }

// Offset returns where the data belongs in the initiator's buffer, bytes.
func (d DataIn) Offset() uint32 { return d.u32(40) }

// SetOffset sets the buffer offset.
func (d DataIn) SetOffset(v uint32) { d.put32(40, v) }

// Residual returns the residual count.
func (d DataIn) Residual() uint32 { return d.u32(44) }

// SetResidual sets the residual count and its flag.
func (d DataIn) SetResidual(n uint32, flag byte) {
	d.put32(44, n)
	d.BHS[1] = d.BHS[1]&^0x06 | flag&0x06
}

// R2T is the view of a Ready To Transfer (RFC 7143 §11.8).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x31      |1| Reserved                                    |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN                                                           |
//	16| Initiator Task Tag                                            |
//	20| Target Transfer Tag                                           |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	36| R2TSN                                                         |
//	40| Buffer Offset                                                 |
//	44| Desired Data Transfer Length                                  |
//	  +---------------+---------------+---------------+---------------+
type R2T struct{ *BHS }

// R2T views b as an R2T.
func (b *BHS) R2T() R2T { return R2T{b} }

// NewR2T clears b and makes it an R2T.
func (b *BHS) NewR2T() R2T {
	b.init(OpR2T, 0x80)
	return R2T{b}
}

// R2TSN returns the number of the R2T within its command.
func (r R2T) R2TSN() uint32 { return r.u32(36) }

// SetR2TSN sets R2TSN.
func (r R2T) SetR2TSN(v uint32) { r.put32(36, v) }

// Offset returns the first byte that is asked for.
func (r R2T) Offset() uint32 { return r.u32(40) }

// SetOffset sets the buffer offset.
func (r R2T) SetOffset(v uint32) { r.put32(40, v) }

// Desired returns how many bytes are asked for.
func (r R2T) Desired() uint32 { return r.u32(44) }

// SetDesired sets how many bytes are asked for.
func (r R2T) SetDesired(v uint32) { r.put32(44, v) }

// SNACK is the view of a SNACK Request (RFC 7143 §11.16).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x10      |1|.|.|.| Type  | Reserved                      |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN or Reserved                                               |
//	16| Initiator Task Tag or 0xffffffff                              |
//	20| Target Transfer Tag or SNACK Tag or 0xffffffff                |
//	24| Reserved                                                      |
//	28| ExpStatSN                                                     |
//	32| Reserved                                                      |
//	40| BegRun                                                        |
//	44| RunLength                                                     |
//	  +---------------+---------------+---------------+---------------+
type SNACK struct{ *BHS }

// SNACKType says what a SNACK asks for.
type SNACKType uint8

// SNACK types.
const (
	SNACKData    SNACKType = 0 // Data-In or R2T again
	SNACKStatus  SNACKType = 1 // responses again
	SNACKDataACK SNACKType = 2 // Data-In up to BegRun has arrived
	SNACKRData   SNACKType = 3 // Data-In again, newly cut
)

// SNACK views b as a SNACK Request.
func (b *BHS) SNACK() SNACK { return SNACK{b} }

// NewSNACK clears b and makes it a SNACK of the given type.
func (b *BHS) NewSNACK(t SNACKType) SNACK {
	b.init(OpSNACK, 0x80|byte(t)&0x0f)
	return SNACK{b}
}

// Type returns what is asked for.
func (s SNACK) Type() SNACKType { return SNACKType(s.BHS[1] & 0x0f) }

// BegRun returns the first DataSN, R2TSN or StatSN asked for.
func (s SNACK) BegRun() uint32 { return s.u32(40) }

// SetBegRun sets BegRun.
func (s SNACK) SetBegRun(v uint32) { s.put32(40, v) }

// RunLength returns how many PDUs are asked for; 0 means all from BegRun on.
func (s SNACK) RunLength() uint32 { return s.u32(44) }

// SetRunLength sets RunLength.
func (s SNACK) SetRunLength(v uint32) { s.put32(44, v) }
