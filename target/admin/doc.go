// Package admin is the control interface of a running target: JSON over HTTP on
// a unix socket, for `iser-target status` and its companions. Who may open the
// socket may do everything; its mode is 0600.
//
//	GET    /v1/status                        a target.Status
//	DELETE /v1/sessions/{tsih}               end a session
//	POST   /v1/targets/{iqn}/initiators/{name}/release take an initiator's name from its user
//	POST   /v1/targets/{iqn}/luns            add a LUN: a LUNRequest
//	DELETE /v1/targets/{iqn}/luns/{lun}      remove one
//	PUT    /v1/targets/{iqn}/luns/{lun}/size change its size: a ResizeRequest
//	PUT    /v1/targets/{iqn}/luns/{lun}/access change its ALUA state: an AccessRequest
//	POST   /v1/subsystems/{nqn}/namespaces   add a namespace: a NamespaceRequest
//	DELETE /v1/subsystems/{nqn}/namespaces/{nsid} remove one
//	PUT    /v1/volumes/{name}/size           change a volume's size: a ResizeRequest
//	POST   /v1/groups/{name}/promote, …/demote take a group of volumes to this node, or give it up: a GroupRequest
//	POST   /v1/reload                        read the configuration again: Changes; ?dry only tells
//	POST   /v1/upgrade                       have another process take this one's place: an UpgradeRequest, Upgraded
//	POST   /v1/handover                      for that process: the connection is its own from here on
//	POST   /v1/trace                         the commands of a volume, step by step, as they come: a TraceRequest
//	POST   /v1/capture                       what a connection sends and receives, as pcap: a CaptureRequest
//	DELETE /v1/capture                       end that
//	GET    /v1/lvm, POST /v1/lvm?arg=…       volume groups, and lvm2's commands on them: see LVM
//	GET    /debug/pprof/…                    profiles, as net/http/pprof has them
//
// Errors are a status code and an Error.
package admin
