// Package target serves block volumes by iSCSI and NVMe over Fabrics: over TCP and over
// RDMA (iSER, NVMe/RDMA; soft iWARP or RoCE v2). All that goes over TCP shares a port.
//
//	connection ──▶ portal.Portal: place before login, first bytes ──┬─▶ iscsi.Frontend ──▶ scsi.Device ─┐
//	                                                                └─▶ nvmf.Frontend ──────────────────┴─▶ volume.Volume
//
// Portals and front ends know nothing of each other but portal.Frontend and portal.Conn;
// this package puts them together, and adds up what they report (see [Status]).
//
// A [Server] has portals ([Portal]) and targets ([Target]) with logical units
// ([LUN]):
//
//	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:3260"}}})
//	err = srv.AddTarget(target.Target{Name: "iqn.2026-11.softiser:disk0", LUNs: []target.LUN{
//		{Name: "disk0", LUConfig: scsi.LUConfig{LUN: 0, Volume: volume}}}})
//	err = srv.Serve(ctx)
package target
