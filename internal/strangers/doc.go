// Package strangers bounds the TCP connections of clients that have not authenticated yet, so that they cannot keep
// others out.
//
// A listener never refuses a new connection. When there are too many strangers, from one address or in all, an older one
// is closed: the oldest of the address that has the most. An honest client authenticates within a second; one that only
// holds a place loses it. To keep others out, an attacker must open connections faster than all places are replaced
// within that second, from as many addresses as there are places.
//
// Clients from addresses where a member was seen before have as many places of their own, which even such an attacker
// does not get.
//
// Authenticated connections can be bounded for each member: then its oldest is closed.
//
// Connections that no net.Listener accepts share Places in the same way.
//
// An address stands for one host: it is an IPv4 address, or an IPv6 /64.
package strangers
