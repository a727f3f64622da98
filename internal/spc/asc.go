package spc

import "fmt"

// ASC is an additional sense code (high byte) with its qualifier (low byte).
type ASC uint16

// Additional sense codes.
const (
	ASCNone                 ASC = 0x0000
	ASCOperationInProgress  ASC = 0x0016
	ASCNotReady             ASC = 0x0400
	ASCBecomingReady        ASC = 0x0401
	ASCFormatInProgress     ASC = 0x0404
	ASCSelfTestInProgress   ASC = 0x0409
	ASCAccessTransition     ASC = 0x040A
	ASCAccessStandby        ASC = 0x040B
	ASCAccessUnavailable    ASC = 0x040C
	ASCAccessOffline        ASC = 0x0412
	ASCSanitizeInProgress   ASC = 0x041B
	ASCCommFailure          ASC = 0x0800
	ASCUnreachableCopy      ASC = 0x0804
	ASCWriteError           ASC = 0x0C00
	ASCInvalidFieldInIU     ASC = 0x0E03
	ASCCopyTargetGone       ASC = 0x0D02
	ASCUnrecoveredRead      ASC = 0x1100
	ASCMarkedBad            ASC = 0x1114
	ASCParameterListLength  ASC = 0x1A00
	ASCMiscompare           ASC = 0x1D00
	ASCMiscompareUnmapped   ASC = 0x1D01
	ASCInvalidOpcode        ASC = 0x2000
	ASCLBAOutOfRange        ASC = 0x2100
	ASCInvalidTokenOp       ASC = 0x2300
	ASCTokenUnknown         ASC = 0x2304
	ASCTokenCorrupt         ASC = 0x2305
	ASCTokenRevoked         ASC = 0x2306
	ASCTokenExpired         ASC = 0x2307
	ASCTokenCancelled       ASC = 0x2308
	ASCTokenDeleted         ASC = 0x2309
	ASCTokenLength          ASC = 0x230A
	ASCInvalidFieldInCDB    ASC = 0x2400
	ASCLUNotSupported       ASC = 0x2500
	ASCInvalidFieldInParam  ASC = 0x2600
	ASCParameterValue       ASC = 0x2602
	ASCInvalidRelease       ASC = 0x2604
	ASCCopyTooManyTargets   ASC = 0x2606
	ASCCopyTargetType       ASC = 0x2607
	ASCCopyTooManySegments  ASC = 0x2608
	ASCCopySegmentType      ASC = 0x2609
	ASCInlineDataLength     ASC = 0x260B
	ASCWriteProtected       ASC = 0x2700
	ASCWriteProtectedHW     ASC = 0x2701
	ASCWriteProtectedSW     ASC = 0x2702
	ASCSpaceAllocFailed     ASC = 0x2707
	ASCMediumMayHaveChanged ASC = 0x2800
	ASCPowerOnReset         ASC = 0x2900
	ASCPowerOn              ASC = 0x2901
	ASCBusReset             ASC = 0x2902
	ASCDeviceReset          ASC = 0x2903
	ASCInternalReset        ASC = 0x2904
	ASCNexusLoss            ASC = 0x2907
	ASCParametersChanged    ASC = 0x2A00
	ASCModeChanged          ASC = 0x2A01
	ASCReservPreempted      ASC = 0x2A03
	ASCReservReleased       ASC = 0x2A04
	ASCRegistrPreempted     ASC = 0x2A05
	ASCALUAStateChanged     ASC = 0x2A06
	ASCALUATransitionFailed ASC = 0x2A07
	ASCCapacityChanged      ASC = 0x2A09
	ASCCommandsCleared      ASC = 0x2F00
	ASCFormatCorrupted      ASC = 0x3100
	ASCFormatFailed         ASC = 0x3101
	ASCSanitizeFailed       ASC = 0x3103
	ASCSoftThreshold        ASC = 0x3807
	ASCSavingNotSupported   ASC = 0x3900
	ASCMediumNotPresent     ASC = 0x3A00
	ASCTrayClosed           ASC = 0x3A01
	ASCTrayOpen             ASC = 0x3A02
	ASCFailedSelfTest       ASC = 0x3E03
	ASCInquiryChanged       ASC = 0x3F03
	ASCLUNsChanged          ASC = 0x3F0E
	ASCInternalFailure      ASC = 0x4400
	ASCLoadFailed           ASC = 0x5300
	ASCRemovalPrevented     ASC = 0x5302
	ASCInvalidMessage       ASC = 0x4900
	ASCDataPhase            ASC = 0x4B00
	ASCPRResources          ASC = 0x5504
	ASCInsufficientRes      ASC = 0x5503
	ASCTokenResources       ASC = 0x550C
	ASCOperatorRequest      ASC = 0x5A00
)

var ascNames = map[ASC]string{
	ASCNone:                 "no additional sense information",
	ASCNotReady:             "logical unit not ready, cause not reportable",
	ASCBecomingReady:        "logical unit is in process of becoming ready",
	ASCOperationInProgress:  "operation in progress",
	ASCFormatInProgress:     "logical unit not ready, format in progress",
	ASCSelfTestInProgress:   "logical unit not ready, self-test in progress",
	ASCFailedSelfTest:       "logical unit failed self-test",
	ASCAccessTransition:     "logical unit not accessible, asymmetric access state transition",
	ASCAccessStandby:        "logical unit not accessible, target port in standby state",
	ASCAccessUnavailable:    "logical unit not accessible, target port in unavailable state",
	ASCAccessOffline:        "logical unit not ready, offline",
	ASCFormatCorrupted:      "medium format corrupted",
	ASCFormatFailed:         "format command failed",
	ASCSanitizeInProgress:   "logical unit not ready, sanitize in progress",
	ASCCommFailure:          "logical unit communication failure",
	ASCUnreachableCopy:      "unreachable copy target",
	ASCWriteError:           "write error",
	ASCInvalidFieldInIU:     "invalid field in command information unit",
	ASCCopyTargetGone:       "copy target device not reachable",
	ASCUnrecoveredRead:      "unrecovered read error",
	ASCMarkedBad:            "read error, LBA marked bad by application client",
	ASCParameterListLength:  "parameter list length error",
	ASCMiscompare:           "miscompare during verify operation",
	ASCMiscompareUnmapped:   "miscompare verify of unmapped LBA",
	ASCInvalidOpcode:        "invalid command operation code",
	ASCLBAOutOfRange:        "logical block address out of range",
	ASCInvalidTokenOp:       "invalid token operation, cause not reportable",
	ASCTokenUnknown:         "invalid token operation, token unknown",
	ASCTokenCorrupt:         "invalid token operation, token corrupt",
	ASCTokenRevoked:         "invalid token operation, token revoked",
	ASCTokenExpired:         "invalid token operation, token expired",
	ASCTokenCancelled:       "invalid token operation, token cancelled",
	ASCTokenDeleted:         "invalid token operation, token deleted",
	ASCTokenLength:          "invalid token operation, invalid token length",
	ASCInvalidFieldInCDB:    "invalid field in CDB",
	ASCLUNotSupported:       "logical unit not supported",
	ASCInvalidFieldInParam:  "invalid field in parameter list",
	ASCParameterValue:       "parameter value invalid",
	ASCInvalidRelease:       "invalid release of persistent reservation",
	ASCCopyTooManyTargets:   "too many target descriptors",
	ASCCopyTargetType:       "unsupported target descriptor type code",
	ASCCopyTooManySegments:  "too many segment descriptors",
	ASCCopySegmentType:      "unsupported segment descriptor type code",
	ASCInlineDataLength:     "inline data length exceeded",
	ASCWriteProtected:       "write protected",
	ASCWriteProtectedHW:     "hardware write protected",
	ASCWriteProtectedSW:     "logical unit software write protected",
	ASCSpaceAllocFailed:     "space allocation failed, write protect",
	ASCMediumMayHaveChanged: "not ready to ready change, medium may have changed",
	ASCPowerOnReset:         "power on, reset, or bus device reset occurred",
	ASCPowerOn:              "power on occurred",
	ASCBusReset:             "bus reset occurred",
	ASCDeviceReset:          "bus device reset function occurred",
	ASCInternalReset:        "device internal reset",
	ASCNexusLoss:            "I_T nexus loss occurred",
	ASCParametersChanged:    "parameters changed",
	ASCModeChanged:          "mode parameters changed",
	ASCReservPreempted:      "reservations preempted",
	ASCReservReleased:       "reservations released",
	ASCRegistrPreempted:     "registrations preempted",
	ASCALUAStateChanged:     "asymmetric access state changed",
	ASCALUATransitionFailed: "implicit asymmetric access state transition failed",
	ASCCapacityChanged:      "capacity data has changed",
	ASCCommandsCleared:      "commands cleared by another initiator",
	ASCSanitizeFailed:       "sanitize command failed",
	ASCSoftThreshold:        "thin provisioning soft threshold reached",
	ASCSavingNotSupported:   "saving parameters not supported",
	ASCMediumNotPresent:     "medium not present",
	ASCTrayClosed:           "medium not present, tray closed",
	ASCTrayOpen:             "medium not present, tray open",
	ASCInquiryChanged:       "INQUIRY data has changed",
	ASCLUNsChanged:          "reported LUNs data has changed",
	ASCInternalFailure:      "internal target failure",
	ASCLoadFailed:           "media load or eject failed",
	ASCRemovalPrevented:     "medium removal prevented",
	ASCInvalidMessage:       "invalid message error",
	ASCDataPhase:            "data phase error",
	ASCPRResources:          "insufficient registration resources",
	ASCInsufficientRes:      "insufficient resources",
	ASCTokenResources:       "insufficient resources to create ROD token",
	ASCOperatorRequest:      "operator request or state change input",
}

// String returns the meaning of the code, or its numbers.
func (a ASC) String() string {
	if s, ok := ascNames[a]; ok {
		return s
	}
	return fmt.Sprintf("additional sense %02Xh/%02Xh", byte(a>>8), byte(a))
}
