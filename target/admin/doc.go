// Package admin is the control interface of a running target: JSON over HTTP on
// a unix socket, for `iser-target status` and its companions. Who may open the
// socket may do everything; its mode is 0600.
//
//	GET    /v1/status                        a target.Status
//	DELETE /v1/sessions/{tsih}               end a session
//	POST   /v1/targets/{iqn}/luns            add a LUN: a LUNRequest
//	DELETE /v1/targets/{iqn}/luns/{lun}      remove one
//	PUT    /v1/targets/{iqn}/luns/{lun}/size change its size: a ResizeRequest
//
// Errors are a status code and an Error.
package admin
