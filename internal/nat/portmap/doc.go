// Package portmap asks the router of a network to open ports of this host towards the Internet, and
// keeps them open: by PCP (RFC 6887), else NAT-PMP (RFC 6886), else UPnP's Internet Gateway Device.
//
// keeper.go is the loop: it opens and renews, adapts when the host changes networks, and closes at
// the end. router.go defines a router's operations and detects its protocol. pcp.go and natpmp.go
// use packets over UDP (exchange.go). igd.go uses UPnP: ssdp.go finds the device, and soap.go calls
// it.
//
// Answers come from strangers. So only those of the gateway itself count, all have a size limit, and a device's
// description may only refer to the gateway. No library is used, because little is needed, and because a library might
// trust a router with unbounded XML or redirections.
package portmap
