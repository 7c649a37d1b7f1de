// Package vantage lets members of a collective trace a campaign's destinations for each other. Serve
// (serve.go) is the end of the member that allows it, within its Terms (terms.go). Ask (ask.go) is the end of
// the member that runs the campaign.
//
// Both ends share a stream of a session, which is authenticated and encrypted. Requests and results are
// lines of JSON (message.go):
//
//	request  one Request
//	answer   one Answer, then a campaign.Record for each destination that was taken, then an empty line
//
// Results are labelled with the name in the certificate of the member that sent them, because nothing else
// shows whether they are true.
package vantage
