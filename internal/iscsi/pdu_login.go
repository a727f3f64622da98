package iscsi

import "fmt"

// Stage is a stage of the login phase (RFC 7143 §11.12.3).
type Stage uint8

// Stages.
const (
	StageSecurity    Stage = 0
	StageOperational Stage = 1
	StageFullFeature Stage = 3
)

// String returns the RFC's name of the stage.
func (s Stage) String() string {
	switch s {
	case StageSecurity:
		return "SecurityNegotiation"
	case StageOperational:
		return "LoginOperationalNegotiation"
	case StageFullFeature:
		return "FullFeaturePhase"
	}
	return fmt.Sprintf("reserved stage %d", uint8(s))
}

// ISID is the initiator part of a session's identity (RFC 7143 §11.12.5).
type ISID [6]byte

// String formats the ISID as open-iscsi and LIO do.
func (i ISID) String() string { return fmt.Sprintf("%x", [6]byte(i)) }

// login is what Login Requests and Responses have in common.
type login struct{ *BHS }

// Transit reports the T bit: ready to go to the next stage.
func (l login) Transit() bool { return l.Final() }

// Continue reports the C bit: the text goes on in the next PDU.
func (l login) Continue() bool { return l.flag(0x40) }

// CSG returns the current stage.
func (l login) CSG() Stage { return Stage(l.BHS[1] >> 2 & 3) }

// NSG returns the next stage; valid with T.
func (l login) NSG() Stage { return Stage(l.BHS[1] & 3) }

// SetStages sets T, C, CSG and NSG.
func (l login) SetStages(transit, cont bool, csg, nsg Stage) {
	f := byte(csg&3)<<2 | byte(nsg&3)
	if transit {
		f |= 0x80
	}
	if cont {
		f |= 0x40
	}
	l.BHS[1] = f
}

// VersionMax returns the highest version that the sender supports.
func (l login) VersionMax() uint8 { return l.BHS[2] }

// SetVersions sets the highest version, and in a request the lowest one, in a response the one in use.
func (l login) SetVersions(highest, other uint8) { l.BHS[2], l.BHS[3] = highest, other }

// ISID returns the initiator session ID.
func (l login) ISID() ISID { return ISID(l.BHS[8:14]) }

// SetISID sets the initiator session ID.
func (l login) SetISID(i ISID) { copy(l.BHS[8:14], i[:]) }

// TSIH returns the target session handle; 0 in a request opens a new session.
func (l login) TSIH() uint16 { return l.u16(14) }

// SetTSIH sets the target session handle.
func (l login) SetTSIH(v uint16) { l.put16(14, v) }

// LoginRequest is the view of a Login Request (RFC 7143 §11.12).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|1| 0x03      |T|C|.|.|CSG|NSG| Version-max   | Version-min   |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| ISID                                                          |
//	  +                               +---------------+---------------+
//	12|                               | TSIH                          |
//	  +---------------+---------------+---------------+---------------+
//	16| Initiator Task Tag                                            |
//	20| CID                           | Reserved                      |
//	24| CmdSN                                                         |
//	28| ExpStatSN or Reserved                                         |
//	  +---------------+---------------+---------------+---------------+
type LoginRequest struct{ login }

// LoginRequest views b as a Login Request.
func (b *BHS) LoginRequest() LoginRequest { return LoginRequest{login{b}} }

// NewLoginRequest clears b and makes it an (always immediate) Login Request.
func (b *BHS) NewLoginRequest() LoginRequest {
	b.init(OpLoginRequest, 0)
	b.SetImmediate(true)
	return LoginRequest{login{b}}
}

// VersionMin returns the lowest version that the initiator supports.
func (l LoginRequest) VersionMin() uint8 { return l.BHS[3] }

// CID returns the connection ID.
func (l LoginRequest) CID() uint16 { return l.u16(20) }

// SetCID sets the connection ID.
func (l LoginRequest) SetCID(v uint16) { l.put16(20, v) }

// LoginResponse is the view of a Login Response (RFC 7143 §11.13).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x23      |T|C|.|.|CSG|NSG| Version-max   | Version-active|
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| ISID                                                          |
//	  +                               +---------------+---------------+
//	12|                               | TSIH                          |
//	  +---------------+---------------+---------------+---------------+
//	16| Initiator Task Tag                                            |
//	20| Reserved                                                      |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	36| Status-Class  | Status-Detail | Reserved                      |
//	  +---------------+---------------+---------------+---------------+
type LoginResponse struct{ login }

// LoginResponse views b as a Login Response.
func (b *BHS) LoginResponse() LoginResponse { return LoginResponse{login{b}} }

// NewLoginResponse clears b and makes it a Login Response.
func (b *BHS) NewLoginResponse() LoginResponse {
	b.init(OpLoginResponse, 0)
	return LoginResponse{login{b}}
}

// VersionActive returns the version in use.
func (l LoginResponse) VersionActive() uint8 { return l.BHS[3] }

// Status returns class and detail.
func (l LoginResponse) Status() LoginStatus { return LoginStatus(l.u16(36)) }

// SetStatus sets class and detail.
func (l LoginResponse) SetStatus(s LoginStatus) { l.put16(36, uint16(s)) }
