package iscsi

import "fmt"

// TaskFunction is a task management function (RFC 7143 §11.5.1, RFC 7144 §4).
type TaskFunction uint8

// Task management functions.
const (
	AbortTask        TaskFunction = 1
	AbortTaskSet     TaskFunction = 2
	ClearACA         TaskFunction = 3
	ClearTaskSet     TaskFunction = 4
	LogicalUnitReset TaskFunction = 5
	TargetWarmReset  TaskFunction = 6
	TargetColdReset  TaskFunction = 7
	TaskReassign     TaskFunction = 8
	QueryTask        TaskFunction = 9  // iSCSIProtocolLevel ≥ 2
	QueryTaskSet     TaskFunction = 10 // iSCSIProtocolLevel ≥ 2
	ITNexusReset     TaskFunction = 11 // iSCSIProtocolLevel ≥ 2
	QueryAsyncEvent  TaskFunction = 12 // iSCSIProtocolLevel ≥ 2
)

var taskFunctionNames = [...]string{
	AbortTask: "ABORT TASK", AbortTaskSet: "ABORT TASK SET", ClearACA: "CLEAR ACA",
	ClearTaskSet: "CLEAR TASK SET", LogicalUnitReset: "LOGICAL UNIT RESET",
	TargetWarmReset: "TARGET WARM RESET", TargetColdReset: "TARGET COLD RESET",
	TaskReassign: "TASK REASSIGN", QueryTask: "QUERY TASK", QueryTaskSet: "QUERY TASK SET",
	ITNexusReset: "I_T NEXUS RESET", QueryAsyncEvent: "QUERY ASYNCHRONOUS EVENT",
}

// String returns the SAM name of the function.
func (f TaskFunction) String() string {
	if int(f) < len(taskFunctionNames) && taskFunctionNames[f] != "" {
		return taskFunctionNames[f]
	}
	return fmt.Sprintf("task management function %d", uint8(f))
}

// TaskRequest is the view of a Task Management Function Request (RFC 7143 §11.5).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|I| 0x02      |1| Function    | Reserved                      |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| Logical Unit Number (LUN) or Reserved                         |
//	16| Initiator Task Tag                                            |
//	20| Referenced Task Tag or 0xffffffff                             |
//	24| CmdSN                                                         |
//	28| ExpStatSN                                                     |
//	32| RefCmdSN or Reserved                                          |
//	36| ExpDataSN or Reserved                                         |
//	  +---------------+---------------+---------------+---------------+
type TaskRequest struct{ *BHS }

// TaskRequest views b as a Task Management Function Request.
func (b *BHS) TaskRequest() TaskRequest { return TaskRequest{b} }

// NewTaskRequest clears b and makes it an immediate task management request.
func (b *BHS) NewTaskRequest(f TaskFunction) TaskRequest {
	b.init(OpTaskRequest, 0x80|byte(f)&0x7f)
	b.SetImmediate(true)
	t := TaskRequest{b}
	t.SetRefTask(ReservedTag)
	return t
}

// Function returns the requested function.
func (t TaskRequest) Function() TaskFunction { return TaskFunction(t.BHS[1] & 0x7f) }

// RefTask returns the Initiator Task Tag of the task that is meant.
func (t TaskRequest) RefTask() uint32 { return t.u32(20) }

// SetRefTask sets the Referenced Task Tag.
func (t TaskRequest) SetRefTask(v uint32) { t.put32(20, v) }

// RefCmdSN returns the CmdSN of the task that is meant (ABORT TASK).
func (t TaskRequest) RefCmdSN() uint32 { return t.u32(32) }

// SetRefCmdSN sets RefCmdSN.
func (t TaskRequest) SetRefCmdSN(v uint32) { t.put32(32, v) }

// ExpDataSN returns the next Data-In that the initiator expects (TASK REASSIGN).
func (t TaskRequest) ExpDataSN() uint32 { return t.u32(36) }

// SetExpDataSN sets ExpDataSN.
func (t TaskRequest) SetExpDataSN(v uint32) { t.put32(36, v) }

// Task management responses (RFC 7143 §11.6.1, RFC 7144 §4).
const (
	TaskComplete          = 0
	TaskNotFound          = 1
	TaskNoLUN             = 2
	TaskStillAllegiant    = 3
	TaskNoReassign        = 4
	TaskUnsupported       = 5
	TaskNotAuthorized     = 6
	TaskFunctionSucceeded = 7 // QUERY functions: yes
	TaskRejected          = 255
)

// TaskResponse is the view of a Task Management Function Response (RFC 7143 §11.6).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x22      |1| Reserved    | Response      | Reserved      |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| Additional Response Information (RFC 7144), 3 bytes | Reserved|
//	16| Initiator Task Tag                                            |
//	20| Reserved                                                      |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	  +---------------+---------------+---------------+---------------+
type TaskResponse struct{ *BHS }

// TaskResponse views b as a Task Management Function Response.
func (b *BHS) TaskResponse() TaskResponse { return TaskResponse{b} }

// NewTaskResponse clears b and makes it a task management response.
func (b *BHS) NewTaskResponse(response uint8) TaskResponse {
	b.init(OpTaskResponse, 0x80)
	b[2] = response
	return TaskResponse{b}
}

// Response returns the outcome.
func (t TaskResponse) Response() uint8 { return t.BHS[2] }

// Additional returns the additional response information, 24 bits.
func (t TaskResponse) Additional() uint32 {
	return uint32(t.BHS[8])<<16 | uint32(t.BHS[9])<<8 | uint32(t.BHS[10])
}

// SetAdditional sets the additional response information.
func (t TaskResponse) SetAdditional(v uint32) {
	t.BHS[8], t.BHS[9], t.BHS[10] = byte(v>>16), byte(v>>8), byte(v)
}
