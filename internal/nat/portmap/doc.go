// Package portmap has the router of a network open ports of this host towards the Internet, and keeps them
// open: by PCP (RFC 6887), else NAT-PMP (RFC 6886), else UPnP's Internet Gateway Device.
//
// keeper.go is the loop: it opens, renews, follows the host to another network, and closes at the end.
// router.go says what a router can do and finds out which way ours speaks. pcp.go and natpmp.go are
// packets over UDP (exchange.go), igd.go is UPnP: ssdp.go finds the device, soap.go talks to it.
//
// Answers are strangers' bytes: only those of the gateway itself count, all have a bound, and a device's
// description leads nowhere but to the gateway. Written here and not taken from a library, as what is
// needed is small and a router is not to be trusted with unbounded XML or redirections.
//
// It imports nothing of ours; agent may import it.
package portmap
