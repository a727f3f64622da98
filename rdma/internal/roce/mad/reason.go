package mad

import "fmt"

// Reason says why a connection is refused (IBA vol. 1 §12.6.7.2).
type Reason uint16

// Reasons of a REJ.
const (
	ReasonNoQP                  Reason = 1
	ReasonNoEEC                 Reason = 2
	ReasonNoResources           Reason = 3
	ReasonTimeout               Reason = 4
	ReasonUnsupported           Reason = 5
	ReasonInvalidCommID         Reason = 6
	ReasonInvalidCommInstance   Reason = 7
	ReasonInvalidServiceID      Reason = 8
	ReasonInvalidTransport      Reason = 9
	ReasonStaleConn             Reason = 10
	ReasonNoRDC                 Reason = 11
	ReasonInvalidGID            Reason = 12
	ReasonInvalidLID            Reason = 13
	ReasonInvalidSL             Reason = 14
	ReasonInvalidTrafficClass   Reason = 15
	ReasonInvalidHopLimit       Reason = 16
	ReasonInvalidPacketRate     Reason = 17
	ReasonInvalidAltGID         Reason = 18
	ReasonInvalidAltLID         Reason = 19
	ReasonInvalidAltSL          Reason = 20
	ReasonInvalidAltTrafficCls  Reason = 21
	ReasonInvalidAltHopLimit    Reason = 22
	ReasonInvalidAltPacketRate  Reason = 23
	ReasonPortCMRedirect        Reason = 24
	ReasonPortRedirect          Reason = 25
	ReasonInvalidMTU            Reason = 26
	ReasonInsufficientResources Reason = 27
	ReasonConsumer              Reason = 28
	ReasonInvalidRNRRetry       Reason = 29
	ReasonDuplicateCommID       Reason = 30
	ReasonInvalidClassVersion   Reason = 31
	ReasonInvalidFlowLabel      Reason = 32
	ReasonInvalidAltFlowLabel   Reason = 33
	ReasonVendorOption          Reason = 35
)

var reasons = [...]string{
	ReasonNoQP:                  "no queue pair available",
	ReasonNoEEC:                 "no EE context available",
	ReasonNoResources:           "no resources available",
	ReasonTimeout:               "timeout",
	ReasonUnsupported:           "unsupported request",
	ReasonInvalidCommID:         "invalid communication ID",
	ReasonInvalidCommInstance:   "invalid communication instance",
	ReasonInvalidServiceID:      "invalid service ID: nobody listens on that port",
	ReasonInvalidTransport:      "invalid transport service type",
	ReasonStaleConn:             "stale connection: the queue pair is known from an earlier one",
	ReasonNoRDC:                 "RDC does not exist",
	ReasonInvalidGID:            "primary remote port GID rejected",
	ReasonInvalidLID:            "primary remote port LID rejected",
	ReasonInvalidSL:             "invalid primary SL",
	ReasonInvalidTrafficClass:   "invalid primary traffic class",
	ReasonInvalidHopLimit:       "invalid primary hop limit",
	ReasonInvalidPacketRate:     "invalid primary packet rate",
	ReasonInvalidAltGID:         "alternate remote port GID rejected",
	ReasonInvalidAltLID:         "alternate remote port LID rejected",
	ReasonInvalidAltSL:          "invalid alternate SL",
	ReasonInvalidAltTrafficCls:  "invalid alternate traffic class",
	ReasonInvalidAltHopLimit:    "invalid alternate hop limit",
	ReasonInvalidAltPacketRate:  "invalid alternate packet rate",
	ReasonPortCMRedirect:        "port and CM redirection",
	ReasonPortRedirect:          "port redirection",
	ReasonInvalidMTU:            "invalid path MTU",
	ReasonInsufficientResources: "insufficient responder resources",
	ReasonConsumer:              "rejected by the application",
	ReasonInvalidRNRRetry:       "RNR retry count rejected",
	ReasonDuplicateCommID:       "duplicate local communication ID",
	ReasonInvalidClassVersion:   "invalid class version",
	ReasonInvalidFlowLabel:      "invalid primary flow label",
	ReasonInvalidAltFlowLabel:   "invalid alternate flow label",
	ReasonVendorOption:          "vendor option not supported",
}

// String says the reason in words, with its number.
func (r Reason) String() string {
	if int(r) < len(reasons) && reasons[r] != "" {
		return fmt.Sprintf("%s (%d)", reasons[r], uint16(r))
	}
	return fmt.Sprintf("unknown reason (%d)", uint16(r))
}
