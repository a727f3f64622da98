package datamovertest

import "softiser/internal/iscsi"

// Reencode builds a header from what the views of b say, field by field. It is
// equal to b if every bit that is set in b has a name; reserved bits are lost.
func Reencode(b *iscsi.BHS) iscsi.BHS {
	var o iscsi.BHS
	op := b.Opcode()
	initiator := func() {
		o.SetExpStatSN(b.ExpStatSN())
		if op.Info().CmdSN {
			o.SetCmdSN(b.CmdSN())
		}
	}
	switch op {
	case iscsi.OpSCSICommand:
		s, d := b.SCSICommand(), o.NewSCSICommand()
		d.SetRead(s.Read())
		d.SetWrite(s.Write())
		d.SetAttr(s.Attr())
		d.SetEDTL(s.EDTL())
		d.SetCDB(s.CDB())
		d.SetLUN(s.LUN())
		initiator()
	case iscsi.OpSCSIResponse:
		s, d := b.SCSIResponse(), o.NewSCSIResponse()
		d.SetResponse(s.Response())
		d.SetStatus(s.Status())
		d.SetSNACKTag(s.SNACKTag())
		d.SetExpDataSN(s.ExpDataSN())
		d.SetBidiResidual(s.BidiResidual(), s.ResidualFlags())
		d.SetResidual(s.Residual(), s.ResidualFlags())
		o.SetSequence(b.Sequence())
	case iscsi.OpTaskRequest:
		s := b.TaskRequest()
		d := o.NewTaskRequest(s.Function())
		d.SetRefTask(s.RefTask())
		d.SetRefCmdSN(s.RefCmdSN())
		d.SetExpDataSN(s.ExpDataSN())
		d.SetLUN(s.LUN())
		initiator()
	case iscsi.OpTaskResponse:
		s := b.TaskResponse()
		o.NewTaskResponse(s.Response()).SetAdditional(s.Additional())
		o.SetSequence(b.Sequence())
	case iscsi.OpLoginRequest:
		s, d := b.LoginRequest(), o.NewLoginRequest()
		d.SetStages(s.Transit(), s.Continue(), s.CSG(), s.NSG())
		d.SetVersions(s.VersionMax(), s.VersionMin())
		d.SetISID(s.ISID())
		d.SetTSIH(s.TSIH())
		d.SetCID(s.CID())
		initiator()
	case iscsi.OpLoginResponse:
		s, d := b.LoginResponse(), o.NewLoginResponse()
		d.SetStages(s.Transit(), s.Continue(), s.CSG(), s.NSG())
		d.SetVersions(s.VersionMax(), s.VersionActive())
		d.SetISID(s.ISID())
		d.SetTSIH(s.TSIH())
		d.SetStatus(s.Status())
		o.SetSequence(b.Sequence())
	case iscsi.OpTextRequest:
		d := o.NewTextRequest()
		d.SetContinue(b.Text().Continue())
		o.SetTTT(b.TTT())
		o.SetLUN(b.LUN())
		initiator()
	case iscsi.OpTextResponse:
		d := o.NewTextResponse()
		d.SetContinue(b.Text().Continue())
		o.SetTTT(b.TTT())
		o.SetLUN(b.LUN())
		o.SetSequence(b.Sequence())
	case iscsi.OpNopOut:
		o.NewNopOut()
		o.SetTTT(b.TTT())
		o.SetLUN(b.LUN())
		initiator()
	case iscsi.OpNopIn:
		o.NewNopIn()
		o.SetTTT(b.TTT())
		o.SetLUN(b.LUN())
		o.SetSequence(b.Sequence())
	case iscsi.OpDataOut:
		s, d := b.DataOut(), o.NewDataOut()
		d.SetTTT(s.TTT())
		d.SetLUN(s.LUN())
		d.SetDataSN(s.DataSN())
		d.SetOffset(s.Offset())
		initiator()
	case iscsi.OpDataIn:
		s, d := b.DataIn(), o.NewDataIn()
		d.SetAcknowledge(s.Acknowledge())
		d.SetHasStatus(s.HasStatus())
		d.SetStatus(s.Status())
		d.SetTTT(s.TTT())
		d.SetLUN(s.LUN())
		d.SetDataSN(s.DataSN())
		d.SetOffset(s.Offset())
		d.SetResidual(s.Residual(), s.ResidualFlags())
		o.SetSequence(b.Sequence())
	case iscsi.OpR2T:
		s, d := b.R2T(), o.NewR2T()
		d.SetLUN(s.LUN())
		d.SetTTT(s.TTT())
		d.SetR2TSN(s.R2TSN())
		d.SetOffset(s.Offset())
		d.SetDesired(s.Desired())
		o.SetSequence(b.Sequence())
	case iscsi.OpLogoutReq:
		s := b.LogoutRequest()
		o.NewLogoutRequest(s.Reason()).SetCID(s.CID())
		initiator()
	case iscsi.OpLogoutResp:
		s := b.LogoutResponse()
		o.NewLogoutResponse(s.Response()).SetTimes(s.Time2Wait(), s.Time2Retain())
		o.SetSequence(b.Sequence())
	case iscsi.OpAsync:
		s := b.Async()
		d := o.NewAsync(s.Event())
		d.SetVCode(s.VCode())
		d.SetParams(s.Params())
		d.SetLUN(s.LUN())
		o.SetSequence(b.Sequence())
	case iscsi.OpReject:
		s := b.Reject()
		o.NewReject(s.Reason()).SetDataSN(s.DataSN())
		o.SetSequence(b.Sequence())
	case iscsi.OpSNACK:
		s := b.SNACK()
		d := o.NewSNACK(s.Type())
		d.SetTTT(s.TTT())
		d.SetLUN(s.LUN())
		d.SetBegRun(s.BegRun())
		d.SetRunLength(s.RunLength())
		initiator()
	}
	o.SetITT(b.ITT())
	o.SetImmediate(b.Immediate())
	o.SetFinal(b.Final())
	o.SetAHSLen(b.AHSLen())
	o.SetDataLen(b.DataLen())
	return o
}
