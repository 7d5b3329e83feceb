package admin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReasonsAreFoldedByCause(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		// Status codes stay apart.
		"answered 500": "answered 500",
		"answered 429": "answered 429",
		"the partner answered 503 for order 1234":    "the partner answered 503 for order #",
		"unexpected status 500":                      "unexpected status 500",
		"unexpected status code: 404, body 17 bytes": "unexpected status code: 404, body # bytes",
		`{"status":502,"took":12}`:                   `{"status":502,"took":#}`,
		"status=503 after 250 ms":                    "status=503 after # ms",
		"HTTP/1.1 500":                               "HTTP/# 500",
		"HTTP 429: slow down":                        "HTTP 429: slow down",
		"429 Too Many Requests":                      "429 Too Many Requests",
		"POST /orders/7: 502 bad gateway":            "POST /orders/#: 502 bad gateway",
		"responded with 409":                         "responded with 409",
		"exit status 2":                              "exit status 2",
		"http_status=500":                            "http_status=500",
		"httpStatus: 429":                            "httpStatus: 429",
		"response_code=503":                          "response_code=503",
		"responseCode=503 for barcode 503":           "responseCode=503 for barcode #",
		"httpStatusCode 404":                         "httpStatusCode 404",
		"answered 500: trace 9 of 500 failed":        "answered 500: trace # of # failed",
		"failed with 500":                            "failed with 500",
		"failed with 429":                            "failed with 429",
		"answered with a 500":                        "answered with a 500",
		"answered with a 429":                        "answered with a 429",
		"it failed: 503, next in 17 s":               "it failed: 503, next in # s",
		"error 404":                                  "error 404",
		"HTTP error 502":                             "HTTP error 502",
		"got a 503 from the partner":                 "got a 503 from the partner",
		"received an error 503":                      "received an error 503",
		"response from api.example.com: 503":         "response from api.example.com: 503",
		"the response was 429":                       "the response was 429",
		"with a 429 response":                        "with a 429 response",
		`Post "https://api.example.com/7": 500`:      `Post "https://api.example.com/#": 500`,
		"GET /orders/17 -> 503":                      "GET /orders/# -> 503",
		"POST /orders/500/items: 429 after 3 tries":  "POST /orders/#/items: 429 after # tries",
		// Other numbers do not, also those of three digits.
		"failed with 500 rows left":           "failed with # rows left",
		"failed: 500 of 900 rows":             "failed: # of # rows",
		"failed after 500 ms":                 "failed after # ms",
		"error 137":                           "error #",
		"received 500 errors":                 "received # errors",
		"response from node 500":              "response from node #",
		"GET /orders/500":                     "GET /orders/#",
		"https://api.example.com/500/7 is 17": "https://api.example.com/#/# is #",
		"order 500 is gone":                   "order # is gone",
		"returned 404 rows":                   "returned # rows",
		"returned 404":                        "returned 404",
		"answered 700":                        "answered #",
		"answered 5000":                       "answered #",
		"status 1234":                         "status #",
		"answered after 500ms":                "answered after #ms",
		"429 orders":                          "# orders",
		"503":                                 "#",
		"nacked on the last of 25 deliveries": "nacked on the last of # deliveries",
		// IDs do not show.
		"answered 500, trace 4bf92f3577b34da6a3ce929d0e0e4736":                           "answered 500, trace #",
		"answered 500 (00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01)":         "answered 500 (#-#-#-#)",
		"answered 500 traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7": "answered 500 traceparent: #",
		"trace_id=abcdefabcdefabcdefabcdefabcdefab":                                      "trace_id=#",
		"no trace abcdefabcdefabcdefabcdefabcdefab":                                      "no trace #",
		`{"traceId":"V1StGXR8_Z5jdHi6B-myT","status":500}`:                               `{"traceId":"#","status":500}`,
		"answered 500 x_trace_id=abcdef":                                                 "answered 500 x_trace_id=#",
		"answered 500 parentSpanID=abcdef":                                               "answered 500 parentSpanID=#",
		"request id 7f3a9c":                                                              "request id #",
		"request ID is missing":                                                          "request ID is missing",
		"trace V1StGXR8_Z5jdHi6B-myT failed":                                             "trace # failed",
		"span=V1StGXR8_Z5jdHi6B-myT":                                                     "span=#",
		"trace of an_order-that_was-lost":                                                "trace of an_order-that_was-lost",
		"trace 500a1b2 failed":                                                           "trace # failed",
		"span 3f2a9c1":                                                                   "span #",
		"X-Ray 1-5759e988-bd862e3fe1be46a994272793":                                      "X-Ray #-#-#",
		"message 01M7Y3SQGNBVX5P66MY8JV56FH":                                             "message #",
		"2f8e4a61-94d7-4c52-9b1c-6f0e1d3a5b70 of 0x1F":                                   "# of #",
		"dial tcp 10.0.0.7:5432: connection refused":                                     "dial tcp #:#: connection refused",
		"status code 4bf92f35":                                                           "status code #",
		"effaced facades":                                                                "effaced facades",
	} {
		require.Equal(t, want, foldReason(reason), reason)
		require.Equal(t, foldReason(reason), foldReason(foldReason(reason)), "a folded reason stays")
	}
}
