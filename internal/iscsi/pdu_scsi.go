package iscsi

// SCSICommand is the view of a SCSI Command (RFC 7143 §11.3).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|I| 0x01      |F|R|W|. .|ATTR | Reserved                      |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| Logical Unit Number (LUN)                                     |
//	16| Initiator Task Tag                                            |
//	20| Expected Data Transfer Length                                 |
//	24| CmdSN                                                         |
//	28| ExpStatSN                                                     |
//	32/ SCSI Command Descriptor Block (CDB), 16 bytes                 /
//	  +---------------+---------------+---------------+---------------+
type SCSICommand struct{ *BHS }

// SCSICommand views b as a SCSI Command.
func (b *BHS) SCSICommand() SCSICommand { return SCSICommand{b} }

// NewSCSICommand clears b and makes it a SCSI Command with F set.
func (b *BHS) NewSCSICommand() SCSICommand {
	b.init(OpSCSICommand, 0x80)
	return SCSICommand{b}
}

// Read reports the R bit: the command expects input data.
func (c SCSICommand) Read() bool { return c.flag(0x40) }

// SetRead sets the R bit.
func (c SCSICommand) SetRead(on bool) { c.setFlag(1, 0x40, on) }

// Write reports the W bit: the command expects output data.
func (c SCSICommand) Write() bool { return c.flag(0x20) }

// SetWrite sets the W bit.
func (c SCSICommand) SetWrite(on bool) { c.setFlag(1, 0x20, on) }

// Attr returns the task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of
// queue, 4 ACA.
func (c SCSICommand) Attr() uint8 { return c.BHS[1] & 7 }

// SetAttr sets the task attribute.
func (c SCSICommand) SetAttr(a uint8) { c.BHS[1] = c.BHS[1]&^7 | a&7 }

// EDTL returns the expected data transfer length, bytes; with both R and W set
// it is that of the output data.
func (c SCSICommand) EDTL() uint32 { return c.u32(20) }

// SetEDTL sets the expected data transfer length.
func (c SCSICommand) SetEDTL(n uint32) { c.put32(20, n) }

// CDB returns the first 16 bytes of the command block, inside the header.
func (c SCSICommand) CDB() []byte { return c.BHS[32:48:48] }

// SetCDB copies up to 16 bytes of a command block; a longer one needs an AHS.
func (c SCSICommand) SetCDB(cdb []byte) {
	n := copy(c.BHS[32:], cdb)
	clear(c.BHS[32+n:])
}

// SCSIResponse is the view of a SCSI Response (RFC 7143 §11.4). Its data
// segment, if any, is SenseLength (2 bytes), sense data, response data.
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x21      |1|. .|o|u|O|U|.| Response      | Status        |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| Reserved                                                      |
//	16| Initiator Task Tag                                            |
//	20| SNACK Tag or Reserved                                         |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	36| ExpDataSN or Reserved                                         |
//	40| Bidirectional Read Residual Count or Reserved                 |
//	44| Residual Count or Reserved                                    |
//	  +---------------+---------------+---------------+---------------+
type SCSIResponse struct{ *BHS }

// Residual flags of a SCSI Response; Data-In uses O and U.
const (
	ResidualBidiOverflow  = 0x10
	ResidualBidiUnderflow = 0x08
	ResidualOverflow      = 0x04
	ResidualUnderflow     = 0x02
)

// Response codes of a SCSI Response (RFC 7143 §11.4.3).
const (
	ResponseCompleted     = 0x00 // command completed at target; Status is valid
	ResponseTargetFailure = 0x01
)

// SCSIResponse views b as a SCSI Response.
func (b *BHS) SCSIResponse() SCSIResponse { return SCSIResponse{b} }

// NewSCSIResponse clears b and makes it a SCSI Response.
func (b *BHS) NewSCSIResponse() SCSIResponse {
	b.init(OpSCSIResponse, 0x80)
	return SCSIResponse{b}
}

// ResidualFlags returns the o, u, O and U bits.
func (r SCSIResponse) ResidualFlags() byte { return r.BHS[1] & 0x1e }

// Response returns the iSCSI service response.
func (r SCSIResponse) Response() uint8 { return r.BHS[2] }

// SetResponse sets the iSCSI service response.
func (r SCSIResponse) SetResponse(v uint8) { r.BHS[2] = v }

// Status returns the SCSI status; valid if Response is ResponseCompleted.
func (r SCSIResponse) Status() uint8 { return r.BHS[3] }

// SetStatus sets the SCSI status.
func (r SCSIResponse) SetStatus(v uint8) { r.BHS[3] = v }

// SNACKTag returns the tag for a SNACK that asks for this response's data again.
func (r SCSIResponse) SNACKTag() uint32 { return r.u32(20) }

// SetSNACKTag sets the SNACK tag.
func (r SCSIResponse) SetSNACKTag(v uint32) { r.put32(20, v) }

// ExpDataSN returns how many Data-In and R2T PDUs the target sent for the
// command; 0 means none, or not stated.
func (r SCSIResponse) ExpDataSN() uint32 { return r.u32(36) }

// SetExpDataSN sets ExpDataSN.
func (r SCSIResponse) SetExpDataSN(v uint32) { r.put32(36, v) }

// BidiResidual returns the residual of the read half of a bidirectional command.
func (r SCSIResponse) BidiResidual() uint32 { return r.u32(40) }

// SetBidiResidual sets the residual of the read half and its flag (0,
// ResidualBidiOverflow or ResidualBidiUnderflow).
func (r SCSIResponse) SetBidiResidual(n uint32, flag byte) {
	r.put32(40, n)
	r.BHS[1] = r.BHS[1]&^0x18 | flag&0x18
}

// Residual returns the residual count.
func (r SCSIResponse) Residual() uint32 { return r.u32(44) }

// SetResidual sets the residual count and its flag (0, ResidualOverflow or
// ResidualUnderflow).
func (r SCSIResponse) SetResidual(n uint32, flag byte) {
	r.put32(44, n)
	r.BHS[1] = r.BHS[1]&^0x06 | flag&0x06
}

// ParseSense splits the data segment of a SCSI Response into sense data and
// response data. ok is false if SenseLength does not fit.
func ParseSense(data []byte) (sense, rest []byte, ok bool) {
	if len(data) == 0 {
		return nil, nil, true
	}
	if len(data) < 2 {
		return nil, nil, false
	}
	n := int(be.Uint16(data))
	if n > len(data)-2 {
		return nil, nil, false
	}
	return data[2 : 2+n], data[2+n:], true
}

// AppendSense appends SenseLength and sense data.
func AppendSense(dst, sense []byte) []byte {
	dst = be.AppendUint16(dst, uint16(len(sense)))
	return append(dst, sense...)
}
