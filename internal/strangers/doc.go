// Package strangers bounds the TCP connections of those who have not shown yet who they are, so that they
// cannot keep out those who will.
//
// A listener never refuses a new connection. When there are too many strangers, from one address or in all, an
// older one gives way: the oldest of the address that has the most. Who is honest has shown who it is within
// a second, and who only holds a place loses it. So whoever wants to keep others out has to open connections
// faster than all places turn over within that second, from as many addresses as there are places.
//
// Even that keeps out nobody who comes from an address where a member was seen before: such strangers have as
// many places of their own.
//
// Who has shown to be a member is bounded by name, where its connections are not bounded elsewhere: the oldest of the
// same member gives way.
//
// An address is what one host has for itself: an IPv4 address, or a /64 of IPv6.
//
// It imports nothing of ours; bus and coordinator may import it.
package strangers
